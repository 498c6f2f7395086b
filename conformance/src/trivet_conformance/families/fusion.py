"""Fusion: a fused operator is the composition of its parts, within the composition's budget.

The operator's declaration says once what it is made of. The parts are the plugin's own where it
has them, else the references. Besides ordinary inputs there are such that cancel between the
arguments: what a part would be given is then small, and a formula that never makes it is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Final

from torch import Tensor

from trivet.contracts.declaration import Operator
from trivet.judging.statistics import errors, same_bits
from trivet_conformance.calls.calling import ProviderFault, copied, foreign, on_cpu
from trivet_conformance.calls.layouts import Layout
from trivet_conformance.calls.points import Point, supplied
from trivet_conformance.families.case import (
    Case,
    call,
    on_bases,
)
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench, Disagreement, Truth
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "fusion"
LEVEL: Final = "L2"
TOKENS: Final = 6
BOTH: Final = 2.0
"""Budgets that two results may lie apart: each may use its own."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Ordinary inputs, and inputs that cancel, for each claimed dtype."""
    if target.op.cases.composed is None:
        reason = f"{target.op.name} declares no composition"
        finding = Finding(Status.NOT_SUPPORTED, reason)
        yield Case(f"{target.label}:composition", "", lambda: finding)
        return

    def making(base: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        for mix in ("normal", *_cancelling(target.op, base)):
            point = replace(base, mix=mix)
            run = partial(_finding, target, bench, point, home)
            yield Case(f"{target.label}:{point.text}", point.dtype_text, run)

    yield from on_bases(target, bench, TOKENS, 1 if bench.quick else 4, making)


def _cancelling(op: Operator, point: Point) -> Iterator[str]:
    """Mixes in which two drawn tensors of one shape and dtype are nearly opposite."""
    given = supplied(op, point)
    drawn = [n for n in op.tensors if n not in given and n not in point.absent]
    for a, b in combinations(drawn, 2):
        if op.shapes[a].text == op.shapes[b].text and op.dtypes[a] == op.dtypes[b]:
            yield f"opposite@{a}+{b}"


def _finding(target: Target, bench: Bench, point: Point, home: Layout) -> Finding:
    op, inputs = target.op, point.to_json()
    placed = target.lay_out(bench, point, home)
    composed = op.cases.composed
    if placed is None or composed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
    try:
        truth = bench.truth(op, point)
        given = {n: copied(v) for n, v in placed.arguments.items() if n != "out"}
        whole = on_cpu(foreign(composed, Parts(target), given))
        # where the truth was computed, since a device may add up in another order
        plain = composed(
            {n: o.reference for n, o in target.device.operators.items()},
            {n: v.cpu() if isinstance(v, Tensor) else v for n, v in given.items()},
        )
        fused = on_cpu(call(target, placed).results)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    except Disagreement as problem:
        return Finding(Status.ERROR, str(problem), inputs=inputs)
    if not _same(on_cpu(plain), truth.native):
        reason = "the declared composition of references is not the reference"
        return Finding(Status.ERROR, reason, inputs=inputs)
    verdict = judge(op, truth, fused)
    if verdict.problems:
        text = f"against the composition's budget: {'; '.join(verdict.problems)}"
        return Finding(Status.FAIL, text, 1.0, inputs)
    if not judge(op, truth, whole).problems and (far := _apart(truth, fused, whole)):
        return Finding(Status.FAIL, far, 1.0, inputs)
    return settle(op, truth, verdict)


class Parts(Mapping[str, Callable[..., Any]]):
    """Operators by name, as the plugin under test runs them; the reference where it does not."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getitem__(self, name: str) -> Callable[..., Any]:
        own = [i.provider for i in self._target.neighbours if i.operator.name == name]
        prefer = {name: sorted(own, key=lambda p: p != self._target.provider) or ["reference"]}
        return self._target.device.bind(name, {}, prefer=prefer)

    def __iter__(self) -> Iterator[str]:
        return iter(self._target.device.operators)

    def __len__(self) -> int:
        return len(self._target.device.operators)


def _same(results: list[Any], native: list[Tensor]) -> bool:
    pairs = zip(results, native, strict=True)
    return all(bool(same_bits(r.reshape(n.shape), n, any_nan=True).all()) for r, n in pairs)


def _apart(truth: Truth, fused: list[Any], whole: list[Any]) -> str:
    """Where the fused results lie further from the composed ones than both budgets allow."""
    for i, (a, b) in enumerate(zip(fused, whole, strict=True)):
        shape = truth.native[i].shape
        near, far = a.reshape(shape), b.reshape(shape).double()
        if not truth.allowances:
            continue
        used, _ = truth.allowances[i].used(errors(near, far, truth.judged[i]), a.numel())
        if used > BOTH:
            return f"result {i} is {used:.3g} budgets from the composition of its own parts"
    return ""
