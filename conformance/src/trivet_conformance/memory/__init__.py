"""Families on the memory of a device: what a plugin brings, and what core composes for it.

A family is a module of this folder with a ``NAME``, a ``LEVEL``, a function ``provider(leg)``
that says whose part it judges, and a generator ``cases(leg, bench)``. A new module is a new
family: nothing else lists them. An ability that nobody brings is ``not_supported``, never wrong.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.leg import CORE, Leg

OPERATOR: Final = "memory"
"""What stands in a result's id where an operator stands otherwise."""


def _families() -> Mapping[str, ModuleType]:
    names = [f"{__name__}.{m.name}" for m in pkgutil.iter_modules(__path__)]
    found = [m for m in map(importlib.import_module, names) if hasattr(m, "NAME")]
    return MappingProxyType({m.NAME: m for m in sorted(found, key=lambda m: (m.LEVEL, m.NAME))})


_MODULES: Final = _families()

MEMORY: Final = tuple(_MODULES)
"""The names of the families, in the order in which they run."""

MEMORY_LEVELS: Final[Mapping[str, str]] = MappingProxyType(
    {name: module.LEVEL for name, module in _MODULES.items()}
)
"""The lowest level that wants a family."""


def memory_for(level: str) -> tuple[str, ...]:
    """The families that a level wants, those of lower levels among them."""
    return tuple(name for name, own in MEMORY_LEVELS.items() if own <= level)


def provider(family: str, leg: Leg) -> str:
    """Whose part a family judges: the plugin's, or core's where core composes it."""
    found: str = _MODULES[family].provider(leg)
    return found


def cases(family: str, leg: Leg, bench: Bench) -> Iterator[Case]:
    """The checks of a family; none was run yet."""
    yield from _MODULES[family].cases(leg, bench)


__all__ = ["CORE", "MEMORY", "MEMORY_LEVELS", "OPERATOR", "Leg", "cases", "memory_for", "provider"]
