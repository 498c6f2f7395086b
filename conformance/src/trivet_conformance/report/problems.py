"""What is wrong, for a person: where to look first, and the rest of the same provider in a line.

One cause fails in many families. The first family that fails, value before anything else, is
told with commands; the others are counted, and stand in the report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trivet_conformance.collective import COMM
from trivet_conformance.families import FAMILIES
from trivet_conformance.memory import MEMORY
from trivet_conformance.report.verdict import NO_CALLS
from trivet_conformance.result import Status

SHOWN: Final = 20
LOAD: Final = "load"
ORDER: Final = tuple(dict.fromkeys((LOAD, "value", *FAMILIES, *MEMORY, *COMM, *NO_CALLS)))
"""What is wrong in a family is often wrong in those behind it."""

Row = Mapping[str, Any]
Line = tuple[str, str]
"""A text, and its style."""


def told(bad: Sequence[Row]) -> Iterator[Line]:
    """The lines on results that make a run fail."""
    kinds, owners = 0, _grouped(bad, lambda r: (str(r["operator"]), str(r["provider"])))
    for rows in owners.values():
        families = _grouped(rows, lambda r: str(r["family"]))
        order = sorted(families, key=_place)
        leading = next((f for f in order if f != LOAD), "")
        shown = [f for f in order if f in (LOAD, leading)]
        for family in shown:
            groups = _grouped(families[family], lambda r: (str(r["status"]), _reason(r)))
            for alike in groups.values():
                kinds += 1
                if kinds <= SHOWN:
                    yield from _kind(alike)
        rest = [f for f in order if f not in shown]
        if rest and kinds <= SHOWN:
            counts = ", ".join(_count(family, families[family]) for family in rest)
            yield f"  the same provider also fails in: {counts}", ""
    if kinds > SHOWN:
        yield f"and {kinds - SHOWN} more kinds of problem, in report.jsonl", ""


def _kind(alike: Sequence[Row]) -> Iterator[Line]:
    """One kind of problem: how often, why, and a command for each form in which it shows."""
    first = alike[0]
    cases = f"{len(alike)} cases" if len(alike) > 1 else "1 case"
    where = f"{first['family']} of {first['operator']}, {first['provider']}"
    yield f"{first['status']}: {where}: {cases}", "bold red"
    yield f"  {first['reason']}", ""
    for of_form in _grouped(alike, _form).values():
        yield f"  {of_form[0]['repro']}", ""


def _form(row: Row) -> str:
    start = f"{row['family']}/{row['operator']}/{row['provider']}/"
    return str(row["id"]).removeprefix(start).partition(":")[0]


def _reason(row: Row) -> str:
    """A reason without its numbers and places."""
    text = re.sub(r"; worst at .*? outside", "", str(row["reason"]))
    return re.sub(r"\d[\d.e+-]*", "N", text)


def _count(family: str, rows: Sequence[Row]) -> str:
    others = Counter(str(r["status"]) for r in rows if r["status"] != Status.FAIL)
    return " ".join([family, str(len(rows)), *(f"({n} {s})" for s, n in others.items())])


def _place(family: str) -> int:
    return ORDER.index(family) if family in ORDER else len(ORDER)


def _grouped(rows: Sequence[Row], key: Any) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
