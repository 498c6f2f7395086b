"""Who makes each operation of a group, at which sizes, and why nobody else does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from trivet.collectives.candidates import Candidate
from trivet.collectives.composed import COSTS
from trivet.collectives.launch import Launcher
from trivet.collectives.table import Table
from trivet.contracts.collectives import OPERATIONS, REDUCING, UNSIZED
from trivet.errors import CommUnsupported

COMPOSED: Final = "composed/"


def first(table: Table, operation: str) -> str:
    """The first candidate for an operation that is not excluded in this group."""
    return next((c.id for c in table.candidates[operation] if not c.refused), "nobody")


def rows(
    table: Table, dtypes: Mapping[str, torch.dtype], reduction: str = "sum"
) -> Iterator[dict[str, Any]]:
    """The table of a group: one row for each operation, dtype and band of sizes."""
    for operation in OPERATIONS:
        computes = operation in REDUCING or operation == "all_reduce_add_rms_norm"
        for name, dtype in (dtypes if computes else {"uint8": torch.uint8}).items():
            low = 0
            for most, arms in table.bands(operation, dtype, reduction if computes else ""):
                yield {
                    "operation": operation,
                    "dtype": name if computes else "any",
                    "reduction": reduction if computes else "",
                    "from_bytes": low,
                    "to_bytes": most,
                    "providers": [arm.candidate.id for arm in arms],
                    "determinism": list(arms[0].candidate.claim.determinism) if arms else [],
                }
                low = 0 if most is None else most + 1


def text(launcher: Launcher) -> str:
    """The whole group, for a person."""
    group, table = launcher.group, launcher.table
    ranks = " ".join(str(member.rank) for member in group.members)
    where = f"{group.hosts} machine{'s' * (group.hosts > 1)}, device {group.device}"
    lines = [
        f"{launcher.health.where}: rank {group.rank} of {group.size} (world ranks {ranks})",
        f"  on {where}, check {'on' if launcher.check else 'off'}, timeout {group.timeout:g} s",
    ]
    lines += bands(table)
    lines += [f"  given up: {why}" for why in launcher.refused]
    return "\n".join(lines)


def bands(table: Table) -> list[str]:
    """Who makes what at which sizes, for a person."""
    lines = []
    for row in rows(table, {"float32": torch.float32}):
        sizes = "" if row["operation"] in UNSIZED else _sizes(row["from_bytes"], row["to_bytes"])
        made = " or ".join(row["providers"]) or "nobody"
        level = f"  [{', '.join(row['determinism'])}]" * bool(row["determinism"])
        lines.append(f"  {row['operation']:24}{sizes:28}{made}{level}{_cost(row['providers'])}")
    lines.append("  sizes are for float32 and sum where the operation computes")
    lines.append("  an average is a sum that is divided; integers are rounded towards zero")
    lines.append("  movement is of bytes, and so of every dtype; bool is reduced as bytes")
    return lines


def call(table: Table, operation: str, dtype: torch.dtype, op: str, nbytes: int) -> str:
    """Every candidate for one call in order: which makes it, and why not the others."""
    reduction = op if operation in REDUCING else ""
    key = (operation, dtype, reduction, False)
    chosen: Candidate | None = None
    with contextlib.suppress(CommUnsupported):  # then all of them say why not
        chosen = table.find(*key[:3], nbytes)
    lines = [f"{operation} of {nbytes} bytes, {str(dtype).removeprefix('torch.')} {reduction}"]
    seen: dict[str, tuple[str, Candidate]] = {}
    for one in table.candidates[operation]:
        why = "makes it" if one is chosen else table.why(one, key, nbytes)
        if one.id not in seen or why in {"", "makes it"}:  # of several claims, the one that fits
            seen[one.id] = (why or "could, comes later", one)
    for name, (why, one) in seen.items():
        said = f" (order list: {one.said})" if one.said else ""
        domain = ", ".join(map(str, one.claim.domain)) or "everything"
        level = f"; determinism {', '.join(one.claim.determinism)}" * bool(one.claim.determinism)
        lines.append(f"  {name:28}{why}{said}\n{'':30}domain: {domain}{level}{_cost([name])}")
    if chosen and chosen.id.startswith(COMPOSED):
        lines.append("  numerics: in order of rank, accumulated in float32 or wider, rounded once")
    return "\n".join(lines)


def _sizes(low: int, most: int | None) -> str:
    if most is None:
        return f"from {low} bytes" if low else "any size"
    return f"{low} to {most} bytes"


def _cost(providers: list[str]) -> str:
    name = providers[0].removeprefix(COMPOSED) if providers else ""
    known = providers and providers[0].startswith(COMPOSED)
    return f"\n{'':30}costs {COSTS[name]}" if known and name in COSTS else ""
