"""Families of checks: each is one question that is asked of every implementation.

A family is a module of this folder with a ``NAME``, a ``LEVEL`` and a generator
``cases(target, bench)``. A case has a name that says everything about its inputs, so that it can
be run again alone. A new module is a new family: nothing else lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.subject import Target

Cases = Callable[[Target, Bench], Iterator[Case]]


def _families() -> tuple[Mapping[str, Cases], Mapping[str, str]]:
    found = [
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    ]
    families = sorted((m for m in found if hasattr(m, "NAME")), key=lambda m: (m.LEVEL, m.NAME))
    return (
        MappingProxyType({m.NAME: m.cases for m in families}),
        MappingProxyType({m.NAME: m.LEVEL for m in families}),
    )


_FOUND = _families()

FAMILIES: Final = _FOUND[0]
"""The families by name, in the order in which they run: by level, then by name."""

LEVEL_OF: Final = _FOUND[1]
"""The lowest level that wants a family: ``L1``, ``L2`` or ``L3``."""

__all__ = ["FAMILIES", "LEVEL_OF", "Case", "Cases"]
