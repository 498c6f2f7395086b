"""A machine of a record: what a user of trivet sees there, as JSON lines, a child for each.

Run as ``python simulated_host.py RECORD ...`` with the package's metadata on the path. Nothing is
launched: torch has no HIP here, and the words of execution say so.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from click.testing import CliRunner

import trivet
from trivet.cli.program import program
from trivet.errors import LockMismatch, TrivetError
from trivet.selection.lock import digest

FACTS = {"dtype": "bfloat16", "hidden": 4096, "contiguous": True}
SITES = {"norm": ("rms_norm", FACTS), "act": ("silu_and_mul", {"dtype": "bfloat16", "inter": 4096}),
         "head": ("linear", {"dtype": "bfloat16"})}  # fmt: skip


class Counted:
    """In place of ``torch.cuda``: how many devices it counts."""

    def __init__(self, count):
        self.device_count = lambda: count


def seen(record):
    """What happens on the machine of a record, in this process."""
    from trivet_rocm import plugin
    from trivet_rocm.discovery import judge

    finding = judge(record)
    plugin.this_machine = lambda: finding
    torch.get_device_module = lambda device=None: Counted(len(finding.devices))
    found = {"kind": finding.obstacle, "devices": len(finding.devices)}
    auto = trivet.device("auto")
    found["auto"] = [auto.info.kind, auto.reason]
    rows = {row["plugin"]: row for row in doctor()["plugins"]}
    found["doctor"] = rows["rocm"]
    try:
        dev = trivet.device("rocm")
    except TrivetError as error:
        return found | {"refused": str(error), "error": type(error).__name__}
    found |= {"info": dev.info.to_json(), "torch": str(dev.torch), "last": ""}
    if len(finding.devices) > 1:
        found["last"] = str(trivet.device(f"rocm:{len(finding.devices) - 1}").torch)
    plan = dev.plan(SITES)
    found["first"] = {name: str(plan.explain(name)[0]) for name in SITES}
    found["lock"] = plan.lock
    found["agrees"] = dev.plan(SITES, lock=plan.lock).digest == plan.digest
    other = {**plan.lock, "device": {**plan.lock["device"], "arch": ["gfx000"]}}
    other["digest"] = digest({name: v for name, v in other.items() if name != "digest"})
    try:
        dev.plan(SITES, lock=other)
    except LockMismatch as error:
        found["mismatch"] = str(error)
    try:
        trivet.device("rocm", require={"batch_invariant"}).plan({"head": SITES["head"]})
    except TrivetError as error:
        found["required"] = str(error)
    return found


def doctor():
    """The document of ``trivet doctor --json``."""
    told = CliRunner().invoke(program, ["doctor", "--json"], prog_name="trivet")
    return json.loads(told.stdout)


def main(files):
    for file in files:
        record = json.loads(Path(file).read_text())
        far, near = os.pipe()
        if os.fork() == 0:
            os.write(near, json.dumps(seen(record), default=str).encode())
            os._exit(0)
        os.close(near)
        with os.fdopen(far, "rb") as pipe:
            print(json.dumps({"machine": Path(file).stem} | json.loads(pipe.read() or b"{}")))
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
