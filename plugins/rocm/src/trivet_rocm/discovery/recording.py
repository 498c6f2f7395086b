"""A record to keep, and a finding for a person."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from trivet_rocm.discovery.machine import Finding

_UNIQUE: Final = "unique_id"


def kept(record: dict[str, object], machine: str) -> dict[str, object]:
    """A record to keep: where it comes from, and serial numbers replaced by their order."""
    origin = f"recorded {datetime.now(UTC):%Y-%m-%d} by python -m trivet_rocm.discovery --record"
    plain = json.loads(json.dumps(record))
    for at, node in enumerate(plain["kfd"]["nodes"], 1):
        if _UNIQUE in node:
            node[_UNIQUE] = at
    return {"origin": origin, "machine": machine, **plain}


def lines(finding: Finding) -> list[str]:
    """A finding for a person."""
    if not finding.devices:
        return [f"no device ({finding.obstacle}): {finding.reason}"]
    found = []
    for info in finding.devices:
        memory = "memory unknown" if info.memory_bytes is None else f"{info.memory_bytes >> 20} MiB"
        cores = "compute units unknown" if info.cores is None else f"{info.cores} compute units"
        found.append(
            f"{info.torch}: {info.name or info.arch[0]}, {info.arch[0]}, {memory}, {cores}"
        )
        found += [f"  {note}" for note in info.notes]
    return found
