"""Shows what discovery finds here, keeps the answers, or replays kept ones.

``python -m trivet_cuda.discovery`` prints devices or the reason for none. ``--record FILE`` keeps
the answers as one of the files that the tests replay; ``--verify`` starts CUDA afterwards, in a
process of its own, and compares what it says. ``--replay FILE`` judges kept answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trivet.errors import TrivetError
from trivet_cuda.discovery import recording
from trivet_cuda.discovery.machine import Finding, judge


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found; 0 when there is a device and CUDA, where asked, says the same."""
    parser = argparse.ArgumentParser(
        prog="python -m trivet_cuda.discovery", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--record", metavar="FILE", help="keep the answers, UUIDs replaced")
    parser.add_argument("--machine", default="", help="with --record: the machine in one line")
    parser.add_argument("--replay", metavar="FILE", help="judge kept answers, ask nothing here")
    parser.add_argument("--verify", action="store_true", help="start CUDA and compare")
    given = parser.parse_args(arguments)
    try:
        return _act(given)
    except TrivetError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 2


def _act(given: argparse.Namespace) -> int:
    record = recording.load(given.replay) if given.replay else recording.recorded(given.machine)
    finding = judge(record)
    print("\n".join(lines(finding)))  # noqa: T201 - a command
    if given.record:  # before CUDA is asked, which may fail
        recording.save(given.record, record)
        print(f"kept in {given.record}")  # noqa: T201 - a command
    if not given.verify:
        return 0 if finding.devices else 1
    if not given.replay:
        record["cuda"] = recording.ask_cuda()
        if given.record:
            recording.save(given.record, record)
    wrong = recording.differences(finding, record)
    print("\n".join(wrong) or "CUDA says the same")  # noqa: T201 - a command
    return 0 if finding.devices and not wrong else 1


def lines(finding: Finding) -> list[str]:
    """A finding for a person."""
    if not finding.devices:
        return [f"no device ({finding.obstacle}): {finding.reason}"]
    found = []
    for info in finding.devices:
        cache = ", ".join(f"{name} {size >> 20} MiB" for name, size in info.cache_bytes.items())
        memory = "memory unknown" if info.memory_bytes is None else f"{info.memory_bytes >> 20} MiB"
        cores = "SMs unknown" if info.cores is None else f"{info.cores} SMs"
        found.append(f"{info.torch}: {info.name}, {info.arch[0]}, {memory}, {cores}, {cache}")
        found += [f"  {note}" for note in info.notes]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
