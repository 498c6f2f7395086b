"""The kit on a device with streams, by hand: references and the mutants of the stream family.

Usage: PYTHONPATH=core/src:conformance/src python conformance/tests/gpu/stream_check.py --out FILE
Needs torch and nothing else; it is no test that pytest collects. On a CPU there are no streams,
and the record says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from trivet.contracts.device_info import DeviceInfo
from trivet.plugins.verification import reference
from trivet_conformance.families.stream import unsupported
from trivet_conformance.result import BAD
from trivet_conformance.running.run import run
from trivet_conformance.selftest.mutants.by_family.stream import DEVICE_VARIANTS
from trivet_conformance.subject.subject import Subject, Target, assemble, from_functions

OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "rotary_embedding",
    "linear",
    "embedding",
    "kv_cache_write",
    "sample_token",
    "paged_attention",
)
QUICK = ("value", "meta", "alias", "special")


def main() -> int:
    """Writes the record; the exit code says whether everything is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=8.0, help="no new operator after that")
    parser.add_argument("--operators", nargs="*", default=list(OPERATORS))
    given = parser.parse_args()
    record = head(given.device)
    device = torch.device(given.device)
    reason = "no such device here" if _missing(device) else unsupported(device)
    if reason:
        save(given.out, record | {"status": "not_supported", "reason": reason})
        print(f"not_supported: {reason}")
        return 0
    torch.set_num_threads(2)
    end = time.monotonic() + 60 * given.minutes
    info = DeviceInfo(device.type, device.index or 0, device.type, record["device_name"])
    record["mutants"] = mutants(info, given.seed)
    save(given.out, record)
    record["references"], record["left_out"] = {}, []
    for name in given.operators:
        if time.monotonic() > end:
            record["left_out"].append(name)
            continue
        record["references"][name] = references_of(info, name, given.seed)
        save(given.out, record)
        print(name, json.dumps(record["references"][name]["statuses"]), flush=True)
    dead = all(m["killed"] for m in record["mutants"])
    bad = [b for row in record["references"].values() for b in row["bad"]]
    record["status"] = "pass" if dead and not bad else "fail"
    save(given.out, record)
    print(f"{record['status']}: {sum(m['killed'] for m in record['mutants'])} mutants killed")
    return int(record["status"] == "fail")


def _missing(device: torch.device) -> bool:
    return device.type != "cpu" and not torch.accelerator.is_available()


def head(name: str) -> dict[str, Any]:
    """What the record is about."""
    cuda = torch.device(name).type == "cuda" and torch.cuda.is_available()
    return {
        "device": name,
        "device_name": torch.cuda.get_device_name() if cuda else name,
        "devices": torch.accelerator.device_count() if torch.accelerator.is_available() else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def mutants(info: DeviceInfo, seed: int) -> list[dict[str, Any]]:
    """Each stream mutant, and whether the family refused it."""
    found = []
    for variant in DEVICE_VARIANTS:
        row = judged(from_functions(variant.functions, "variant", info=info), ["stream"], seed)
        row = {"name": variant.name, "killed": bool(row["failures"]), **row}
        found.append(row)
        print(f"mutant {variant.name}: {'killed' if row['killed'] else 'ACCEPTED'}", flush=True)
    return found


def references_of(info: DeviceInfo, name: str, seed: int) -> dict[str, Any]:
    """One operator's reference under the families."""
    device = assemble([], plugin="reference", info=info)
    own = reference(device.operators[name])
    target = Target(device, own, (own,), (own,))
    return judged(Subject("reference", device, (target,)), [*QUICK, "stream"], seed)


def judged(subject: Subject, families: Iterable[str], seed: int) -> dict[str, Any]:
    """Statuses by family, and the reasons of what is bad; a fault of the kit is part of it."""
    start = time.monotonic()
    statuses: dict[str, Counter[str]] = {}
    bad, failures, reasons, power = [], 0, [], 0
    for family in families:
        try:
            for result in run(subject, families=[family], seed=seed, quick=True):
                statuses.setdefault(family, Counter())[result.status.value] += 1
                power += result.finding.power
                if family == "stream":
                    reasons.append(f"{result.status.value}: {result.id}: {result.finding.reason}")
                if result.status in BAD:
                    failures += result.status.value == "fail"
                    bad.append(f"{result.id}: {result.status.value}: {result.finding.reason}")
        except Exception:  # noqa: BLE001 - a record with the fault in it beats none
            bad.append(f"{family}: {traceback.format_exc(limit=3)}")
    return {
        "statuses": {f: dict(c) for f, c in statuses.items()},
        "failures": failures,
        "power": power,
        "bad": bad[:20],
        "stream": reasons,
        "seconds": round(time.monotonic() - start, 1),
    }


def save(path: Path, record: dict[str, Any]) -> None:
    """Writes the record as it is now, so that a killed run leaves one."""
    path.write_text(json.dumps(record, indent=2, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
