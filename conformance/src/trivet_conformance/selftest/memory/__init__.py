"""Variants of a plugin's memory: wrong ones, each with the family that kills it, and legal ones."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

import torch

from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import CORE, MEMORY, OPERATOR, Leg, cases, provider
from trivet_conformance.result import Status
from trivet_conformance.selftest.legs import LegVariant, judge_leg
from trivet_conformance.selftest.memory import broken_moving, broken_pools, legal
from trivet_conformance.selftest.selftest import Outcome

_BROKEN: Final = (broken_pools.BROKEN, broken_moving.BROKEN)
_FINE: Final = (Status.PASS, Status.NOT_SUPPORTED)

MEMORY_VARIANTS: Final[tuple[LegVariant, ...]] = (
    *(LegVariant(m, killer) for b in _BROKEN for killer, own in b.items() for m in own),
    *(LegVariant(m) for m in legal.LEGAL),
)
"""Every variant, mutants first."""


def judge_memory(
    *, quick: bool = False, seed: int = 0, names: Collection[str] = ()
) -> Iterator[Outcome]:
    """Judges variants of a memory.

    Args:
        quick: small grids, and fewer families (see ``_quick_families``).
        seed: of the checks.
        names: the variants; none means all.

    They are made of what Linux has: elsewhere there are none.
    """
    bench = Bench(seed, quick=quick)
    for variant in MEMORY_VARIANTS if sys.platform.startswith("linux") else ():
        if not names or variant.name in names:
            families = _quick_families(variant) if quick else MEMORY
            elsewhere = not quick or bool(variant.killer) or variant.make in legal.ELSEWHERE
            leg = variant_leg(variant, elsewhere=elsewhere)
            own = partial(cases, leg=leg, bench=bench)
            yield judge_leg(variant, OPERATOR, families, own, _FINE)


def variant_leg(variant: LegVariant, *, elsewhere: bool = True) -> Leg:
    """A variant as the memory of the CPU.

    Args:
        variant: it.
        elsewhere: whether other processes can make it, too; they take seconds to start.
    """
    recipe = variant.recipe if elsewhere else ""
    return Leg("variant", torch.device("cpu"), variant.make(), recipe)


def _quick_families(variant: LegVariant) -> tuple[str, ...]:
    """The family that must kill a mutant; of a legal one all that judge no part of core's."""
    if variant.killer:
        return (variant.killer,)
    leg = variant_leg(variant, elsewhere=False)
    return tuple(name for name in MEMORY if provider(name, leg) != CORE)
