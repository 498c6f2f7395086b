"""The kit tests itself: wrong providers must be killed by a named family, legal ones accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD, Status
from trivet_conformance.running.run import run
from trivet_conformance.selftest.mutants import VARIANTS, Variant
from trivet_conformance.subject.subject import Subject, from_functions

PLUGIN: Final = "variant"


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
    """

    name: str
    operator: str
    killer: str
    tried: tuple[str, ...]
    killed: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)
    margin: float = 0.0

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
            "ok": self.ok,
        }


def selftest(
    *, quick: bool = False, seed: int = 0, variants: Sequence[Variant] = VARIANTS
) -> Iterator[Outcome]:
    """Judges every variant, those of one operator together.

    Args:
        quick: small grids, and a mutant meets only the family that must kill it.
        seed: of the runs.
        variants: what to judge; by default all.
    """
    groups: dict[str, list[tuple[Variant, Subject]]] = {}
    for variant in variants:
        subject = from_functions(variant.functions, PLUGIN)
        groups.setdefault(subject.targets[0].op.name, []).append((variant, subject))
    for group in groups.values():
        bench = Bench(seed, quick=quick)
        for variant, subject in group:
            families = (variant.killer,) if quick and variant.killer else tuple(FAMILIES)
            with one_thread():
                outcome = judge_variant(variant, subject, families, bench)
            yield outcome


def judge_variant(
    variant: Variant, subject: Subject, families: Sequence[str], bench: Bench
) -> Outcome:
    """Runs families over one variant; one that refused it is not run further."""
    killed, reasons, margin = [], {}, 0.0
    for family in families:
        passed = False
        for result in run(subject, families=[family], seed=bench.seed, bench=bench):
            passed |= result.status in (Status.PASS, Status.REFUSED_OK)
            margin = max(margin, result.finding.margin)
            if result.status in BAD:
                killed.append(family)
                reasons[family] = f"{result.id}: {result.finding.reason}"
                break
        if not passed and family not in killed and not variant.killer:
            killed.append(family)
            reasons[family] = "nothing passed: a legal variant must be judged"
    return Outcome(
        name=variant.name,
        operator=subject.targets[0].op.name,
        killer=variant.killer,
        tried=tuple(families),
        killed=tuple(killed),
        reasons=reasons,
        margin=margin,
    )


def sole_killers(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """For each family the mutants that no other one kills; a family without one is redundant."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for outcome in outcomes:
        if outcome.killer and len(outcome.killed) == 1:
            found[outcome.killed[0]].append(outcome.name)
    return found
