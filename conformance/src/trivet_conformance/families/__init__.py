"""Families of checks: each is one question that is asked of every implementation.

A family is a module with a ``NAME`` and a generator ``cases(target, bench)``. A case has a name
that says everything about its inputs, so that it can be run again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from trivet_conformance.families import alias, layout, meta, special, value
from trivet_conformance.families.case import Case
from trivet_conformance.subject import Target
from trivet_conformance.truth import Bench

Cases = Callable[[Target, Bench], Iterator[Case]]

FAMILIES: Final[Mapping[str, Cases]] = MappingProxyType(
    {module.NAME: module.cases for module in (value, meta, alias, layout, special)}
)
"""The families by name, in the order in which they run."""

__all__ = ["FAMILIES", "Case", "Cases"]
