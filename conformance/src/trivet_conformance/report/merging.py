"""Parts of one run, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trivet_conformance.report.errors import ShardsDiffer
from trivet_conformance.report.stored import Stored
from trivet_conformance.result import Status

_OWN: Final = frozenset({"date", "shard"})
"""What each part has for itself."""


def merge(parts: Sequence[Stored]) -> list[dict[str, Any]]:
    """Lines of the whole run.

    A check that two parts judged differently is ``flaky``.

    Raises:
        ShardsDiffer: the parts are not of one run, one is missing, or one was cut short.
    """
    if not parts:
        raise ShardsDiffer("no reports to merge")
    for part in parts:
        _same_run(parts[0], part)
        if part.cut:
            raise ShardsDiffer(f"{part.folder} was cut short", fix="run that shard again")
    _all_there(parts)
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for row in part.results:
            earlier = found.setdefault(str(row["id"]), dict(row))
            if earlier["status"] != row["status"] and earlier["status"] != Status.FLAKY:
                text = f"{earlier['status']} in one report, {row['status']} in another"
                why = str(earlier["reason"] or row["reason"])
                reason = f"{text}: {why}" if why else text
                earlier |= {"status": Status.FLAKY.value, "reason": reason}
    date = min(str(p.head.get("date", "")) for p in parts)
    head = {"kind": "run", **parts[0].head, "shard": [1, 1], "date": date}
    return [head, *found.values()]


def _same_run(first: Stored, other: Stored) -> None:
    keys = sorted((first.head.keys() | other.head.keys()) - _OWN)
    differ = [k for k in keys if first.head.get(k) != other.head.get(k)]
    if differ:
        values = "; ".join(f"{k}: {first.head.get(k)!r}, {other.head.get(k)!r}" for k in differ)
        what = f"{first.folder} and {other.folder} are not of one run: {values}"
        raise ShardsDiffer(what, fix="merge shards of one plugin, seed, mode and machine only")


def _all_there(parts: Sequence[Stored]) -> None:
    shards = [tuple(p.head.get("shard") or (1, 1)) for p in parts]
    totals = sorted({of for _, of in shards})
    if len(totals) > 1:
        raise ShardsDiffer(f"the run is cut into {totals[0]} parts in one, {totals[1]} in another")
    if missing := sorted(set(range(1, totals[0] + 1)) - {i for i, _ in shards}):
        names = ", ".join(f"{i}/{totals[0]}" for i in missing)
        raise ShardsDiffer(f"shard {names} is missing", fix=f"run --shard {names} too")
