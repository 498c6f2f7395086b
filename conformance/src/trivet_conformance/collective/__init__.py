"""Families on the collectives of a device: a plugin's providers, and core's over torch.

A family is a module of this folder with a ``NAME``, a ``LEVEL`` and a generator
``cases(leg, ranks, bench)``. A new module is a new family: nothing else lists them. Ranks are
processes; every question to them has a deadline.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.comm_leg import CommLeg

OPERATOR: Final = "collectives"
"""What stands in a result's id where an operator stands otherwise."""


def _families() -> Mapping[str, ModuleType]:
    names = [f"{__name__}.{m.name}" for m in pkgutil.iter_modules(__path__)]
    found = [m for m in map(importlib.import_module, names) if hasattr(m, "NAME")]
    return MappingProxyType({m.NAME: m for m in sorted(found, key=lambda m: (m.LEVEL, m.NAME))})


_MODULES: Final = _families()

COMM: Final = tuple(_MODULES)
"""The names of the families, in the order in which they run."""

COMM_LEVELS: Final[Mapping[str, str]] = MappingProxyType(
    {name: module.LEVEL for name, module in _MODULES.items()}
)
"""The lowest level that wants a family."""

QUICK_SECONDS: Final = (3.0, 12.0)
FULL_SECONDS: Final = (20.0, 90.0)
"""What a group waits for other ranks, and what a question may take."""


def comm_for(level: str) -> tuple[str, ...]:
    """The families that a level wants, those of lower levels among them."""
    return tuple(name for name, own in COMM_LEVELS.items() if own <= level)


def cases(
    family: str, leg: CommLeg, bench: Bench, *, seconds: tuple[float, float] | None = None
) -> Iterator[Case]:
    """The checks of a family; none was run yet.

    Args:
        family: which.
        leg: what is under test.
        bench: seed and size of the grids.
        seconds: that a group waits, and that a question may take.
    """
    timeout, deadline = seconds or (QUICK_SECONDS if bench.quick else FULL_SECONDS)
    ranks = Ranks(leg, timeout, deadline)
    try:
        yield from _MODULES[family].cases(leg, ranks, bench)
    finally:
        ranks.close()


__all__ = ["COMM", "COMM_LEVELS", "OPERATOR", "CommLeg", "cases", "comm_for"]
