"""Variants of a plugin's collectives: wrong ones, each with its killer, and legal ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.collective import COMM, CommLeg, cases
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD, Status
from trivet_conformance.selftest.collective import broken, legal
from trivet_conformance.selftest.defects import NUMBERS
from trivet_conformance.selftest.selftest import NOTHING, Outcome
from trivet_conformance.subject.leg import MADE

SECONDS: Final = (2.0, 6.0)
"""What a group of a variant waits, and what a question may take: calls are small."""


@dataclass(frozen=True)
class CommVariant:
    """A plugin's collectives made for the self-test.

    Args:
        make: what ``trivet_collectives`` would return, a class or a function that returns it.
        killer: the family that must kill it; empty for a legal one.
    """

    make: Callable[..., Any]
    killer: str = ""

    @property
    def name(self) -> str:
        """What it does."""
        return self.make.__name__

    def leg(self) -> CommLeg:
        """The variant as the collectives of the CPU."""
        recipe = f"{MADE}{self.make.__module__}:{self.name}"
        return CommLeg("variant", torch.device("cpu"), self.make, recipe)


COMM_VARIANTS: Final[tuple[CommVariant, ...]] = (
    *(CommVariant(m, killer) for killer, own in broken.BROKEN.items() for m in own),
    *(CommVariant(m) for m in legal.LEGAL),
)
"""Every variant, mutants first."""


def judge_comm(
    *, quick: bool = False, seed: int = 0, names: Collection[str] = ()
) -> Iterator[Outcome]:
    """Judges variants of collectives; grids are always quick ones, of two ranks.

    Args:
        quick: a mutant meets only the family that must kill it.
        seed: of the checks.
        names: the variants; none means all.

    They need what Linux has: elsewhere there are none.
    """
    for variant in COMM_VARIANTS if sys.platform.startswith("linux") else ():
        if not names or variant.name in names:
            families = (variant.killer,) if quick and variant.killer else COMM
            yield judge_comm_variant(variant, families, Bench(seed, quick=True))


def judge_comm_variant(variant: CommVariant, families: Sequence[str], bench: Bench) -> Outcome:
    """Runs families over one variant; one that refused it is not run further."""
    reasons, passed, leg = dict[str, str](), False, variant.leg()
    for family in families:
        for case in cases(family, leg, bench, seconds=SECONDS):
            with one_thread():
                found = case.run()
            passed |= found.status is Status.PASS
            if found.status in BAD:
                reasons[family] = f"{case.name}: {found.reason}"
                break
    if not (passed or reasons or variant.killer):
        reasons[NOTHING] = "nothing passed: a legal variant must be judged"
    return Outcome(
        name=variant.name, operator="collectives", killer=variant.killer, tried=tuple(families),
        killed=tuple(reasons), reasons=reasons, number=NUMBERS.get(variant.name, 0),
    )  # fmt: skip


def comm_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of variants of collectives in a self-test."""
    mutants = [o for o in outcomes if o.killer]
    return {
        "comm_mutants": len(mutants),
        "comm_mutants_killed": sum(o.ok for o in mutants),
        "comm_legal": len(outcomes) - len(mutants),
        "comm_legal_accepted": sum(o.ok for o in outcomes if not o.killer),
        "comm_variants": [o.to_json() for o in outcomes],
    }
