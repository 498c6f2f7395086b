"""Variants of a whole leg, of memory or of collectives: how they are judged and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.families.case import Case
from trivet_conformance.result import BAD, Status
from trivet_conformance.selftest.defects import NUMBERS
from trivet_conformance.selftest.selftest import NOTHING, Outcome
from trivet_conformance.subject.leg import MADE


@dataclass(frozen=True)
class LegVariant:
    """A plugin's leg made for the self-test.

    Args:
        make: makes what the plugin's hook would return, or is it; its name is the variant's.
        killer: the family that must kill it; empty for a legal one.
    """

    make: Callable[..., Any]
    killer: str = ""

    @property
    def name(self) -> str:
        """What it does."""
        return self.make.__name__

    @property
    def recipe(self) -> str:
        """How another process makes it."""
        return f"{MADE}{self.make.__module__}:{self.name}"


def judge_leg(
    variant: LegVariant,
    leg: str,
    families: Sequence[str],
    cases: Callable[[str], Iterable[Case]],
    fine: Sequence[Status] = (Status.PASS,),
) -> Outcome:
    """Runs families over one variant; one that refused it is not run further.

    Args:
        variant: it.
        leg: what stands for an operator in the outcome.
        families: those that are run.
        cases: the checks of a family.
        fine: what shows that a legal variant was judged at all.
    """
    reasons, passed = dict[str, str](), False
    for family in families:
        for case in cases(family):
            with one_thread():
                found = case.run()
            passed |= found.status in fine
            if found.status in BAD:
                reasons[family] = f"{case.name}: {found.reason}"
                break
    if not (passed or reasons or variant.killer):
        reasons[NOTHING] = "nothing passed: a legal variant must be judged"
    return Outcome(
        name=variant.name, operator=leg, killer=variant.killer, tried=tuple(families),
        killed=tuple(reasons), reasons=reasons, number=NUMBERS.get(variant.name, 0),
    )  # fmt: skip


def leg_figures(leg: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of a leg's variants in a self-test; their names begin with the leg's."""
    mutants = [o for o in outcomes if o.killer]
    return {
        f"{leg}_mutants": len(mutants),
        f"{leg}_mutants_killed": sum(o.ok for o in mutants),
        f"{leg}_legal": len(outcomes) - len(mutants),
        f"{leg}_legal_accepted": sum(o.ok for o in outcomes if not o.killer),
        f"{leg}_variants": [o.to_json() for o in outcomes],
    }
