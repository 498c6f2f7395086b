"""The records of all ranks together: what each does, and who waits for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trivet.collectives.place import running
from trivet.collectives.recorder import SCHEMA
from trivet.contracts.collectives import UNSIZED

Record = Mapping[str, Any]

_ALIKE: Final = ("dtype", "nbytes", "reduction", "peer")


def read(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The records of a folder by group, in order of rank; and why any file was left out."""
    groups: dict[str, list[dict[str, Any]]] = {}
    remarks: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["schema"] != SCHEMA:
                remarks.append(f"{path.name}: of another version of trivet")
                continue
            groups.setdefault(str(found["token"]), []).append(
                found | {"alive": running(found["host"], found["pid"])}
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            remarks.append(f"{path.name}: {type(error).__name__}: {error}")
    for rows in groups.values():
        rows.sort(key=lambda record: int(record["rank"]))
    return groups, remarks


def merge(records: Sequence[Record]) -> dict[str, Any]:
    """One group: the last call of each rank, and sentences on who waits for whom."""
    first = records[0]
    ranks = [_rank(record) for record in records]
    missing = sorted(set(range(first["size"])) - {record["rank"] for record in records})
    return {
        "group": first["group"],
        "token": first["token"],
        "size": first["size"],
        "ranks": ranks,
        "missing": missing,
        "verdict": _verdict(ranks, missing),
    }


def _rank(record: Record) -> dict[str, Any]:
    calls = record["calls"]
    numbered = [call for call in calls if call["seq"] is not None]
    open_calls = [call for call in calls if call["ended"] is None and not call["error"]]
    return {
        "rank": record["rank"],
        "pid": record["pid"],
        "host": record["host"],
        "alive": record["alive"],
        "age": time.time() - record["time"],
        "failure": record["failure"],
        "closed": record["closed"],
        "seq": numbered[-1]["seq"] if numbered else None,
        "by_seq": {call["seq"]: call for call in numbered},
        "waits_in": open_calls[-1] if open_calls else None,
        "last": calls[-1] if calls else None,
    }


def _verdict(ranks: Sequence[dict[str, Any]], missing: Sequence[int]) -> list[str]:
    said = [f"rank {rank} has written nothing" for rank in missing]
    said += [f"rank {r['rank']} has ended" for r in ranks if r["alive"] is False]
    said += _differences(ranks)
    waiting = [r for r in ranks if r["waits_in"] is not None]
    for one in waiting:
        call = one["waits_in"]
        for_whom = _behind(call, one, ranks)
        names = ", ".join(map(str, [*for_whom, *missing])) or "nobody that is known"
        said.append(f"rank {one['rank']} waits in {shown(call)} for {_ranks(names)}")
    for one in ranks:
        if one not in waiting and one["alive"] is not False and waiting and not one["closed"]:
            last = f"its last call was {shown(one['last'])}" if one["last"] else "it made no call"
            said.append(f"rank {one['rank']} waits for nobody; {last}")
    said += [f"rank {r['rank']} failed: {r['failure']}" for r in ranks if r["failure"]]
    return said or ["nobody waits"]


def _behind(call: Record, one: Record, ranks: Sequence[dict[str, Any]]) -> list[int]:
    """The ranks that have not come to a call."""
    if call["seq"] is None:
        return [] if call["peer"] is None else [int(call["peer"])]
    others = [r for r in ranks if r is not one]
    return [r["rank"] for r in others if r["seq"] is None or r["seq"] < call["seq"]]


def _differences(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """The first call that ranks made with other arguments; later ones follow from it."""
    numbers = sorted({seq for r in ranks for seq in r["by_seq"]})
    for seq in numbers:
        have = [(r["rank"], r["by_seq"][seq]) for r in ranks if seq in r["by_seq"]]
        for rank, call in have[1:]:
            if _signature(call) != _signature(have[0][1]):
                a, b = shown(have[0][1]), shown(call)
                said = f"ranks disagree since #{seq}: rank {have[0][0]} made {a}, rank {rank} made"
                return [f"{said} {b}"]
    return []


def _signature(call: Record) -> list[object]:
    """What ranks have in common of a call; sizes only where they are the same everywhere."""
    sized = call["operation"] not in UNSIZED
    return [call["operation"], *(call[key] for key in _ALIKE if sized or key != "nbytes")]


def shown(call: Record) -> str:
    """One call in a few words."""
    number = "" if call["seq"] is None else f" #{call['seq']}"
    peer = "" if call["peer"] is None else f", peer {call['peer']}"
    reduction = f" {call['reduction']}" * bool(call["reduction"])
    return (
        f"{call['operation']}{number} ({call['nbytes']} bytes of {call['dtype']}{reduction}{peer})"
    )


def _ranks(names: str) -> str:
    return names if not names[0].isdigit() else f"rank{'s' * (',' in names)} {names}"
