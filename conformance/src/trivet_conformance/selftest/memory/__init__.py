"""Variants of a plugin's memory: wrong ones, each with the family that kills it, and legal ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import CORE, MEMORY, Leg, cases, provider
from trivet_conformance.result import BAD, Status
from trivet_conformance.selftest.defects import NUMBERS
from trivet_conformance.selftest.memory import broken_moving, broken_pools, legal
from trivet_conformance.selftest.selftest import NOTHING, Outcome
from trivet_conformance.subject.leg import MADE


@dataclass(frozen=True)
class MemoryVariant:
    """A plugin's memory made for the self-test.

    Args:
        make: makes what ``trivet_memory`` would return; its name is the variant's.
        killer: the family that must kill it; empty for a legal one.
    """

    make: Callable[[], Any]
    killer: str = ""

    @property
    def name(self) -> str:
        """What it does."""
        return self.make.__name__

    def leg(self, *, elsewhere: bool = True) -> Leg:
        """The variant as the memory of the CPU.

        Args:
            elsewhere: whether other processes can make it, too; they take seconds to start.
        """
        recipe = f"{MADE}{self.make.__module__}:{self.name}" if elsewhere else ""
        return Leg("variant", torch.device("cpu"), self.make(), recipe)


_BROKEN: Final = (broken_pools.BROKEN, broken_moving.BROKEN)

MEMORY_VARIANTS: Final[tuple[MemoryVariant, ...]] = (
    *(MemoryVariant(m, killer) for b in _BROKEN for killer, own in b.items() for m in own),
    *(MemoryVariant(m) for m in legal.LEGAL),
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
    for variant in MEMORY_VARIANTS if sys.platform.startswith("linux") else ():
        if not names or variant.name in names:
            families = _quick_families(variant) if quick else MEMORY
            yield judge_memory_variant(variant, families, Bench(seed, quick=quick))


def _quick_families(variant: MemoryVariant) -> tuple[str, ...]:
    """The family that must kill a mutant; of a legal one all that judge no part of core's."""
    if variant.killer:
        return (variant.killer,)
    leg = variant.leg(elsewhere=False)
    return tuple(name for name in MEMORY if provider(name, leg) != CORE)


def judge_memory_variant(variant: MemoryVariant, families: Sequence[str], bench: Bench) -> Outcome:
    """Runs families over one variant; one that refused it is not run further."""
    elsewhere = not bench.quick or bool(variant.killer) or variant.make in legal.ELSEWHERE
    reasons, passed, leg = dict[str, str](), False, variant.leg(elsewhere=elsewhere)
    for family in families:
        for case in cases(family, leg, bench):
            with one_thread():
                found = case.run()
            passed |= found.status in (Status.PASS, Status.NOT_SUPPORTED)
            if found.status in BAD:
                reasons[family] = f"{case.name}: {found.reason}"
                break
    if not (passed or reasons or variant.killer):
        reasons[NOTHING] = "nothing passed: a legal variant must be judged"
    return Outcome(
        name=variant.name, operator="memory", killer=variant.killer, tried=tuple(families),
        killed=tuple(reasons), reasons=reasons, number=NUMBERS.get(variant.name, 0),
    )  # fmt: skip


def memory_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of memory variants in a self-test."""
    mutants = [o for o in outcomes if o.killer]
    return {
        "memory_mutants": len(mutants),
        "memory_mutants_killed": sum(o.ok for o in mutants),
        "memory_legal": len(outcomes) - len(mutants),
        "memory_legal_accepted": sum(o.ok for o in outcomes if not o.killer),
        "memory_variants": [o.to_json() for o in outcomes],
    }
