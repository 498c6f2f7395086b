"""What all families share: cases, dtypes that are not claimed, and one judged call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import Outcome, ProviderFault, invoke, on_cpu
from trivet_conformance.calls.domain import fit
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point, make
from trivet_conformance.judging.judge import Verdict, judge, settle
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target, dtype_text


@dataclass(frozen=True)
class Case:
    """One check that can be run.

    Args:
        name: everything after ``family/operator/provider/`` of the result's id.
        dtype: dtypes of the call, as text.
        run: runs it.
    """

    name: str
    dtype: str
    run: Callable[[], Finding]


def claimed(target: Target) -> Iterator[tuple[dict[str, torch.dtype], str]]:
    """Dtypes to try, each with the reason why the provider does not claim them."""
    for dtypes in grid.dtype_sets(target.op):
        yield dtypes, target.dtype_refusal(dtypes)


def unclaimed(target: Target, dtypes: Mapping[str, Any], reason: str) -> Case:
    """The case that says that a provider claims nothing for these dtypes."""
    text = dtype_text(dtypes)
    finding = Finding(Status.NOT_SUPPORTED, reason)
    return Case(f"{target.label}:{text}", text, lambda: finding)


def base_points(
    target: Target, dtypes: Mapping[str, torch.dtype], bench: Bench, star: int, limit: int
) -> list[tuple[Point, Layout]]:
    """A few points inside the domain with ``star`` leading elements, each with its home layout."""
    op, found = target.op, dict[Point, Layout]()
    for i, dims in enumerate(grid.sizes(op, quick=True)):
        scalars = grid.scalar_sets(op)
        sized = dims | dict.fromkeys(op.stars, star)
        if not all(sized.values()):
            continue
        absent = grid.absent_sets(op)[0]
        raw = make(sized, scalars[i % len(scalars)], dtypes, "normal", absent)
        point = fit(op, target.implementation.domain, raw)
        home = target.home(bench, point) if valid(target, bench, point) else None
        if home is not None:
            found.setdefault(point, home)
        if len(found) == limit:
            break
    return list(found.items())


Making = Callable[[Point, Layout, bool], Iterator[Case]]
"""(point, its layout, whether it is the first of all) -> cases."""


def on_bases(target: Target, bench: Bench, star: int, limit: int, making: Making) -> Iterator[Case]:
    """Cases at a few points of every claimed dtype, and cases that say what is not claimed.

    Args:
        target: the implementation.
        bench: inputs and truths.
        star: leading elements of the points.
        limit: how many points a dtype has at most.
        making: makes the cases of one point.
    """
    first = True
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        bases = base_points(target, dtypes, bench, star, limit)
        if not bases:
            yield nothing_inside(target, dtypes)
        for point, home in bases:
            yield from making(point, home, first)
            first = False


def valid(target: Target, bench: Bench, point: Point) -> bool:
    """Whether a point is a call; a declared case always is, and is an error where it fails."""
    return bench.is_call(target.op, point) or point in declared(target)


def declared(target: Target) -> set[Point]:
    """Points whose dims are declared cases, with ordinary values."""
    op = target.op
    return {
        make(dims, scalars, dtypes)
        for dims in op.cases.sizes
        for scalars in grid.scalar_sets(op)
        for dtypes in grid.dtype_sets(op)
    }


def call(target: Target, placed: Placed) -> Outcome:
    """Calls the provider in its own form.

    Raises:
        ProviderFault: it raised.
    """
    return invoke(target.op, target.form, target.implementation.function, placed)


def judged_call(target: Target, bench: Bench, point: Point, layout: Layout) -> Verdict | Finding:
    """Makes one call and judges it by value; a finding where it comes to no verdict."""
    try:
        truth = bench.truth(target.op, point)
    except Disagreement as problem:
        return Finding(Status.ERROR, str(problem), inputs=point.to_json())
    placed = target.lay_out(bench, point, layout)
    if placed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=point.to_json())
    try:
        outcome = call(target, placed)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, point.to_json())
    return judge(target.op, truth, on_cpu(outcome.results))


def value_finding(target: Target, bench: Bench, point: Point, layout: Layout) -> Finding:
    """One call inside the domain, judged by value, with the power of the judgement."""
    found = judged_call(target, bench, point, layout)
    if isinstance(found, Finding):
        return found
    return settle(target.op, bench.truth(target.op, point), found)


def nothing_inside(target: Target, dtypes: Mapping[str, Any]) -> Case:
    """The case that says that the kit found no call inside a domain: nothing was checked."""
    text = dtype_text(dtypes)
    reason = f"no call that the catalogue can make lies inside the domain of {target.provider}"
    finding = Finding(Status.ERROR, reason)
    return Case(f"{target.label}:{text}", text, lambda: finding)
