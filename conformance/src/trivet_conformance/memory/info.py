"""Info: numbers that can be true, and None where nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from trivet.contracts.memory import InfoSource, MemoryInfo, Stats, StatsSource
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.judged import Check, Wrong, asked, case
from trivet_conformance.subject.leg import Leg

NAME: Final = "memory.info"
LEVEL: Final = "L1"

NEVER_NONE: Final = ("total_bytes", "limit_bytes", "recommended_bytes", "max_buffer_bytes")
"""Numbers of a device that works; 0 would be one without memory."""

_NOT_ABOVE: Final = (
    ("free_bytes", "total_bytes"),
    ("recommended_bytes", "total_bytes"),
    ("max_buffer_bytes", "total_bytes"),
)


def provider(leg: Leg) -> str:
    """Whose numbers they are."""
    return leg.owner(InfoSource, StatsSource)


def cases(leg: Leg, bench: Bench) -> Iterator[Case]:
    """What the device has, and what is in use."""
    checks: dict[str, Check] = {"info": _info, "stats": _stats}
    for name, check in checks.items():
        yield case(name, check, leg, bench)


def _info(leg: Leg, bench: Bench) -> str:
    del bench
    info: Any = asked(leg.info)
    if not isinstance(info, MemoryInfo):
        msg = f"info returns {type(info).__name__}, no MemoryInfo"
        raise Wrong(msg)
    _numbers(info, [f.name for f in fields(info) if f.name not in {"source", "unified"}])
    for name in NEVER_NONE:
        if getattr(info, name) == 0:
            msg = f"{name} is 0: a number that nobody knows is None"
            raise Wrong(msg)
    for small, large in _NOT_ABOVE:
        one, other = getattr(info, small), getattr(info, large)
        if one is not None and other is not None and one > other:
            msg = f"{small} is {one}, and {large} is {other}"
            raise Wrong(msg)
    source: Any = info.source
    if not isinstance(source, str) or not source.strip():
        msg = "source is empty: a person must see where the numbers come from"
        raise Wrong(msg)
    return source


def _stats(leg: Leg, bench: Bench) -> None:
    del bench
    stats: Any = asked(leg.stats)
    if not isinstance(stats, Stats):
        msg = f"stats returns {type(stats).__name__}, no Stats"
        raise Wrong(msg)
    _numbers(stats, [f.name for f in fields(stats) if f.name != "by_tag"])
    pairs = (("allocated_bytes", "reserved_bytes"), ("allocated_bytes", "max_allocated_bytes"),
             ("reserved_bytes", "max_reserved_bytes"))  # fmt: skip
    for small, large in pairs:
        one, other = getattr(stats, small), getattr(stats, large)
        if one is not None and other is not None and one > other:
            msg = f"{small} is {one}, and {large} is {other}"
            raise Wrong(msg)


def _numbers(found: object, names: list[str]) -> None:
    for name in names:
        value = getattr(found, name)
        if value is not None and (type(value) is not int or value < 0):
            msg = f"{name} is {value!r}, neither a number of bytes nor None"
            raise Wrong(msg)
