"""One variant of an operator's reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trivet.contracts.implementation import claims_of
from trivet_conformance.selftest.defects import NUMBERS


@dataclass(frozen=True)
class Variant:
    """A provider made for the self-test.

    Args:
        name: what it does.
        functions: its marked functions, more than one where it supplies several forms.
        killer: the family that must kill it; empty for a legal variant.
    """

    name: str
    functions: tuple[Callable[..., Any], ...]
    killer: str = ""

    @property
    def number(self) -> int:
        """Its class of defects; 0 for a legal variant."""
        return NUMBERS.get(self.name, 0)


def variants(killer: str, functions: Iterable[Callable[..., Any]]) -> tuple[Variant, ...]:
    """One variant for each claimed name, in order; functions of one name belong together."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for function in functions:
        found.setdefault(claims_of(function)[0].name, []).append(function)
    return tuple(Variant(name, tuple(own), killer) for name, own in found.items())
