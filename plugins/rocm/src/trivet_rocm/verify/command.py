"""The command line, and the order of the steps."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trivet_rocm import STATUS, __version__
from trivet_rocm.discovery.machine import judge
from trivet_rocm.discovery.record import gather
from trivet_rocm.discovery.recording import kept, lines
from trivet_rocm.verify.steps import Step, done, steps

SCHEMA: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where every step passed, 1 where one did not, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="trivet-rocm", description=STATUS)
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser(
        "verify-on-hardware", help="everything that was not run yet; one JSON file to send back"
    )
    verify.add_argument("--out", default="trivet-rocm.json", metavar="FILE", help="the JSON file")
    verify.add_argument(
        "--work", default="trivet-rocm-work", metavar="DIR", help="kept between runs"
    )
    verify.add_argument("--seconds", type=float, default=3600.0, help="of one step, at most")
    verify.add_argument("--quick", action="store_true", help="the kit's small grids")
    verify.add_argument(
        "--only", action="append", default=[], metavar="STEP", help="such steps alone"
    )
    verify.add_argument("--machine", default="", help="the machine in one line")
    verify.add_argument("--list", action="store_true", help="print the steps, run nothing")
    return verify_on_hardware(parser.parse_args(arguments))


def verify_on_hardware(given: argparse.Namespace) -> int:
    """Run the steps and write the file, after each of them."""
    out, work = Path(given.out), Path(given.work)
    record = kept(gather(), given.machine)
    finding = judge(record)
    wanted = [
        step
        for step in steps(finding.devices[:1], work, quick=given.quick)
        if not given.only or step.name in given.only
    ]
    if given.list:
        _say("\n".join(f"{step.name}: {' '.join(step.command)}" for step in wanted))
        return 0
    _say("\n".join(lines(finding)))
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "package": f"trivet-rocm {__version__}",
        "status": STATUS,
        "machine": record,
        "found": [info.to_json() for info in finding.devices],
        "reason": finding.reason,
        "steps": [],
    }
    _write(out, document)
    if not finding.devices:
        _say(f"no GPU is usable; {out} says why")
        return 2
    work.mkdir(parents=True, exist_ok=True)
    for step in wanted:
        _say(f"{step.name}: {' '.join(step.command)}")
        document["steps"].append(done(step, given.seconds))
        _write(out, document)
        _say(f"{step.name}: {document['steps'][-1]['word']}")
    _say(f"wrote {out}: please send it back")
    return 0 if all(row["word"] == "passed" for row in document["steps"]) else 1


def _write(out: Path, document: dict[str, Any]) -> None:
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command


__all__ = ["Step", "main", "verify_on_hardware"]
