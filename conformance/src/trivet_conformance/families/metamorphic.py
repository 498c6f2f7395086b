"""Metamorphic: calls whose results must fit together.

Where the leading elements of an operator are independent, which its reference shows, results for
some rows are some rows of the results: a row alone, rows in another order, a batch in two parts.
Other relations are part of an operator's declaration. Code that declares itself deterministic and
batch invariant is held to them bit by bit; other code by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.cases import Relation
from trivet.contracts.declaration import Operator
from trivet_conformance.calls.calling import (
    compute,
    in_float64,
    invoke,
    lay_out,
    on_cpu,
)
from trivet_conformance.families.around import Around, equal, flipped
from trivet_conformance.families.case import (
    Case,
    base_points,
    claimed,
    nothing_inside,
    unclaimed,
)
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench, Truth
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "metamorphic"
LEVEL: Final = "L2"
TOKENS: Final = 6
MANY: Final = 66
"""Rows of a batch that a kernel may well split in another way than a small one."""

NEAR: Final = 2.0**-30
"""How far a relation may be from the reference's results in float64, by the largest of them."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every derived and declared relation, at a small and a larger batch."""
    relations = (*_derived(target.op), *target.op.cases.relations)
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        found = []
        for tokens in (TOKENS, MANY):
            found += base_points(target, dtypes, bench, tokens, 1 if bench.quick else 2)
        if not found:
            yield nothing_inside(target, dtypes)
        for point, home in dict(found).items():
            for relation in relations:
                name = f"{target.label}:{relation.name}:{point.text}"
                asked = _Asked(target, bench, point, home, relation)
                run = partial(asked.guarded, partial(_finding, asked))
                yield Case(name, point.dtype_text, run)
        if found and not relations:
            finding = Finding(Status.NOT_SUPPORTED, "no relation is known of this operator")
            yield Case(f"{target.label}:relations", "", partial(_told, finding))


def _told(finding: Finding) -> Finding:
    return finding


@dataclass(frozen=True)
class _Rows:
    """Some rows of a call; they are taken alike from arguments and results."""

    op: Operator
    what: str

    def arguments(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with these rows only."""
        return {
            n: self._taken(v) if n in self.op.shapes and self.op.shapes[n].star else v
            for n, v in given.items()
        }

    def results(self, results: list[Tensor], given: Mapping[str, Any]) -> list[Tensor]:
        """The results for these rows."""
        del given
        return [self._taken(r) for r in results]

    def _taken(self, t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        n = t.shape[0]
        rows = {
            "last row alone": torch.arange(n)[-1:],
            "reversed rows": torch.arange(n).flip(0),
            "first half": torch.arange(n)[: n // 2],
            "second half": torch.arange(n)[n // 2 :],
        }
        return t[rows[self.what]].contiguous()


def _derived(op: Operator) -> Iterator[Relation]:
    """Relations of independent rows; the reference shows whether they hold."""
    starred = [n for n in op.tensors if op.shapes[n].star]
    if len(op.stars) != 1 or not starred or op.writes or op.inplace_only:
        return
    if not all(output.shape.star for output in op.outputs):
        return
    for what in ("last row alone", "reversed rows", "first half", "second half"):
        rows = _Rows(op, what)
        yield Relation(what, rows.arguments, rows.results, derived=True)


@dataclass(frozen=True)
class _Asked(Around):
    """One relation at one point."""

    relation: Relation


def _finding(asked: _Asked) -> Finding:
    target, relation, inputs = asked.target, asked.relation, asked.point.to_json()
    op = target.op
    truth = asked.bench.truth(op, asked.point)
    changed = relation.arguments(truth.arguments)
    if problem := _unrelated(op, relation, truth, changed):
        status = Status.NOT_SUPPORTED if relation.derived else Status.ERROR
        return Finding(status, problem, inputs=inputs)
    other = mapped(truth, relation)
    first, second = _results(asked, truth.arguments), _results(asked, changed)
    if first is None or second is None:
        return Finding(Status.NOT_RUN, "the changed call is outside the domain", inputs=inputs)
    verdict = judge(op, truth, first)
    if not verdict.problems:
        verdict = judge(op, other, second)
    if verdict.problems:
        return Finding(Status.FAIL, "; ".join(verdict.problems), verdict.margin, inputs)
    if bitwise(target) and relation.bitwise:
        want = relation.results(first, truth.arguments)
        if not equal(second, want):
            text = f"{relation.name}: bits differ, though declared batch_invariant"
            return Finding(Status.FAIL, text, 1.0, inputs)
        if second[0].numel() and equal([flipped(second[0]), *second[1:]], want):
            reason = "the check has no power: it accepts a flipped bit"
            return Finding(Status.ERROR, reason, inputs=inputs)
    return settle(op, truth, judge(op, truth, first))


def bitwise(target: Target) -> bool:
    """Whether code declares that its bits depend on nothing but a row's own numbers."""
    told = target.implementation.claim.properties
    return {"deterministic", "batch_invariant"} <= told


def mapped(truth: Truth, relation: Relation) -> Truth:
    """What is right for the changed call."""

    def one(results: list[Tensor]) -> list[Tensor]:
        return relation.results(results, truth.arguments) if results else []

    scores = truth.scores
    if scores is not None:
        lower, upper = one([scores.lower])[0], one([scores.upper])[0]
        scores = replace(scores, lower=lower, upper=upper)
    return replace(
        truth,
        oracle=one(truth.oracle),
        native=one(truth.native),
        settled=tuple(one(list(truth.settled))),
        judged=tuple(one(list(truth.judged))),
        scores=scores,
    )


def _unrelated(op: Operator, relation: Relation, truth: Truth, changed: Mapping[str, Any]) -> str:
    """Why the reference does not fit a relation; empty where it does."""
    wide = in_float64(truth.arguments)
    want = relation.results(compute(op, op.reference, wide), truth.arguments)
    try:
        got = compute(op, op.reference, in_float64(changed))
    except Exception as error:  # noqa: BLE001 - the reference is a declaration under test here
        return f"the reference raises {type(error).__name__} for {relation.name!r}"
    for a, b in zip(want, got, strict=True):
        scale = a.double().abs().amax() if a.numel() else 0.0
        far = a.shape != b.shape or bool(((a.double() - b.double()).abs() > NEAR * scale).any())
        if far:
            return f"the reference does not have the relation {relation.name!r}"
    return ""


def _results(asked: _Asked, given: Mapping[str, Any]) -> list[Any] | None:
    target, layout = asked.target, replace(asked.home, lead=None)
    own = target.adapted(given, asked.point, layout)
    placed = lay_out(target.op, target.form, own, layout, target.device.torch)
    if placed is None or target.refusal(placed):
        return None
    outcome = invoke(target.op, target.form, target.implementation.function, placed)
    return on_cpu(outcome.results)
