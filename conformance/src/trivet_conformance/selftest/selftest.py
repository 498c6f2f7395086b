"""The kit tests itself: wrong providers must be killed by a named family, legal ones accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.families import FAMILIES, LEVEL_OF
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD, Status
from trivet_conformance.running.run import run
from trivet_conformance.selftest import naive
from trivet_conformance.selftest.defects import NOT_YET
from trivet_conformance.selftest.mutants import VARIANTS, Variant
from trivet_conformance.subject.subject import Subject, from_functions

PLUGIN: Final = "variant"
LOWEST: Final = "L1"
NOTHING: Final = "nothing"
"""Stands in for a family where a legal variant was judged by none."""


@dataclass(frozen=True)
class Outcome:
    """What became of one variant.

    Args:
        name: its name.
        operator: the operator that it implements.
        killer: the family that must kill it; empty for a legal one.
        tried: families that were run on it.
        killed: families that refused it.
        reasons: the first reason of each family that refused it.
        margin: the largest share of a budget that it used, where it was accepted.
        number: its class of defects; 0 for a legal one.
        seen: what a plain test with ``assert_close`` says of it; empty where it passes.
    """

    name: str
    operator: str
    killer: str
    tried: tuple[str, ...]
    killed: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)
    margin: float = 0.0
    number: int = 0
    seen: str = ""

    @property
    def ok(self) -> bool:
        """Whether the kit judged as it must."""
        return self.killer in self.killed if self.killer else not self.killed

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "operator": self.operator,
            "killer": self.killer,
            "tried": list(self.tried),
            "killed": list(self.killed),
            "reasons": self.reasons,
            "margin": round(self.margin, 4),
            "number": self.number,
            "seen_by_assert_close": bool(self.seen),
            "ok": self.ok,
        }


def selftest(
    *, quick: bool = False, seed: int = 0, variants: Sequence[Variant] = VARIANTS
) -> Iterator[Outcome]:
    """Judges every variant, those of one operator together.

    Args:
        quick: small grids; a mutant meets only the family that must kill it, and of an operator's
            legal variants only the first meets every family (see ``_quick_families``).
        seed: of the runs.
        variants: what to judge; by default all.
    """
    groups: dict[str, list[tuple[Variant, Subject]]] = {}
    for variant in variants:
        subject = from_functions(variant.functions, PLUGIN)
        groups.setdefault(subject.targets[0].op.name, []).append((variant, subject))
    for group in groups.values():
        bench = Bench(seed, quick=quick)
        legal = -1
        for variant, subject in group:
            legal += not variant.killer
            families = _quick_families(variant, legal) if quick else tuple(FAMILIES)
            with one_thread():
                outcome = judge_variant(variant, subject, families, bench)
            yield replace(outcome, seen=naive.seen(subject))


def _quick_families(variant: Variant, turn: int) -> tuple[str, ...]:
    """What a variant meets in a quick self-test.

    Legal variants after an operator's first meet the families of level L1 and every second of the
    others, in turn.
    """
    if variant.killer:
        return (variant.killer,)
    higher = [name for name, level in LEVEL_OF.items() if level != LOWEST]
    left_out = {name for i, name in enumerate(higher) if turn and (turn + i) % 2}
    return tuple(name for name in FAMILIES if name not in left_out)


def judge_variant(
    variant: Variant, subject: Subject, families: Sequence[str], bench: Bench
) -> Outcome:
    """Runs families over one variant; one that refused it is not run further."""
    killed, reasons, margin, passed = [], {}, 0.0, False
    for family in families:
        for result in run(subject, families=[family], seed=bench.seed, bench=bench):
            passed |= result.status in (Status.PASS, Status.REFUSED_OK)
            margin = max(margin, result.finding.margin)
            if result.status in BAD:
                killed.append(family)
                reasons[family] = f"{result.id}: {result.finding.reason}"
                break
    if not (passed or killed or variant.killer):
        killed.append(NOTHING)
        reasons[NOTHING] = "nothing passed: a legal variant must be judged"
    return Outcome(
        name=variant.name,
        operator=subject.targets[0].op.name,
        killer=variant.killer,
        tried=tuple(families),
        killed=tuple(killed),
        reasons=reasons,
        margin=margin,
        number=variant.number,
    )


def sole_killers(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """For each family the mutants that no other one kills; a family without one is redundant."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for outcome in outcomes:
        if outcome.killer and len(outcome.killed) == 1 and outcome.killed[0] in found:
            found[outcome.killed[0]].append(outcome.name)
    return found


def figures(outcomes: Sequence[Outcome], *, quick: bool) -> dict[str, Any]:
    """The figures of a self-test.

    In a quick one a mutant meets only the family that must kill it, so that sole killers are not
    known.
    """
    mutants = [o for o in outcomes if o.killer]
    legal = [o for o in outcomes if not o.killer]
    seen = [o.name for o in mutants if o.seen]
    return {
        "ok": all(o.ok for o in outcomes),
        "mode": "quick" if quick else "full",
        "mutants": len(mutants),
        "mutants_killed": sum(o.ok for o in mutants),
        "classes": len({o.number for o in mutants if o.number}),
        "legal": len(legal),
        "legal_accepted": sum(o.ok for o in legal),
        "seen_by_assert_close": len(seen),
        "share_seen_by_assert_close": round(len(seen) / max(len(mutants), 1), 3),
        "legal_refused_by_assert_close": [o.name for o in legal if o.seen],
        "not_yet": dict(NOT_YET),
        "matrix": {o.name: {f: f in o.killed for f in o.tried} for o in outcomes},
        "sole_killers": None if quick else sole_killers(mutants),
        "variants": [o.to_json() for o in outcomes],
    }
