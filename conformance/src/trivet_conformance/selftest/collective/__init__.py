"""Variants of a plugin's collectives: wrong ones, each with its killer, and legal ones."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

import torch

from trivet_conformance.collective import COMM, OPERATOR, CommLeg, cases
from trivet_conformance.collective.errors import SEGMENTS
from trivet_conformance.judging.truth import Bench
from trivet_conformance.selftest.collective import broken, legal
from trivet_conformance.selftest.legs import LegVariant, judge_leg
from trivet_conformance.selftest.selftest import Outcome

SECONDS: Final = (2.0, 6.0)
"""What a group of a variant waits, and what a question may take: calls are small."""

COMM_VARIANTS: Final[tuple[LegVariant, ...]] = (
    *(LegVariant(m, killer) for killer, own in broken.BROKEN.items() for m in own),
    *(LegVariant(m) for m in legal.LEGAL),
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
    bench = Bench(seed, quick=True)
    for variant in COMM_VARIANTS if sys.platform.startswith("linux") else ():
        if not names or variant.name in names:
            families = (variant.killer,) if quick and variant.killer else COMM
            leg = CommLeg("variant", torch.device("cpu"), variant.make, variant.recipe)
            own = partial(cases, leg=leg, bench=bench, seconds=SECONDS)
            yield judge_leg(variant, OPERATOR, families, own)
            for left in SEGMENTS.glob(f"{broken.LEFT}*"):
                left.unlink(missing_ok=True)
