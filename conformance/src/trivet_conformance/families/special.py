"""Special: NaN, infinities, zeros, denormals, extremes and empty calls.

NaN stay in their places and infinities keep place and sign, as the oracle has them; where the
reference in the same dtype differs from the oracle (it overflowed earlier), both are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import ProviderFault, on_cpu
from trivet_conformance.calls.layouts import Layout
from trivet_conformance.calls.mixes import EVERY_ARGUMENT, SPECIALS
from trivet_conformance.calls.points import Point, supplied
from trivet_conformance.families.case import (
    Case,
    base_points,
    call,
    claimed,
    nothing_inside,
    unclaimed,
    valid,
    value_finding,
)
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "special"
LEVEL: Final = "L2"
TOKENS: Final = 5


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every special value in every drawn tensor, and calls without elements."""
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        bases = base_points(target, dtypes, bench, TOKENS, 1 if bench.quick else 2)
        if not bases:
            yield nothing_inside(target, dtypes)
        for base, layout in bases:
            for mix in mixes(target.op, base):
                point = replace(base, mix=mix)
                name = f"{target.label}:{point.text}"
                run = partial(value_finding, target, bench, point, layout)
                yield Case(name, point.dtype_text, run)
        for base, _ in bases[:1]:
            yield from _empty(target, bench, base)


def mixes(op: Operator, point: Point) -> Iterator[str]:
    """The special values that an operator's drawn tensors can be given."""
    given = supplied(op, point)
    for arg in op.tensors:
        declared = op.dtypes[arg]
        fixed = grid.is_dtype(declared) or arg in given or arg in point.absent
        if fixed or any(d.name not in dict(point.dims) for d in op.shapes[arg].dims):
            continue
        for special in SPECIALS:
            if declared == ACTIVATION or special in EVERY_ARGUMENT:
                yield f"{special}@{arg}"


def _empty(target: Target, bench: Bench, base: Point) -> Iterator[Case]:
    """Calls whose star is 0: no element, no error."""
    for star in target.op.stars:
        point = base.with_dims(**{star: 0})
        if not valid(target, bench, point) or target.home(bench, point) is None:
            continue
        name = f"{target.label}:{point.text}"
        yield Case(name, point.dtype_text, partial(_nothing, target, bench, point))


def _nothing(target: Target, bench: Bench, point: Point) -> Finding:
    placed = target.lay_out(bench, point, Layout())
    if placed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=point.to_json())
    try:
        truth = bench.truth(target.op, point)
        verdict = judge(target.op, truth, on_cpu(call(target, placed).results))
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, point.to_json())
    except Disagreement as problem:
        return Finding(Status.ERROR, str(problem), inputs=point.to_json())
    status = Status.FAIL if verdict.problems else Status.PASS
    return Finding(status, "; ".join(verdict.problems), verdict.margin, point.to_json())
