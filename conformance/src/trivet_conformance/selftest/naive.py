"""What a plain test sees: ``torch.testing.assert_close`` with its defaults on normal numbers.

A variant is called as most test files call a kernel: contiguous inputs of one ordinary size with
64 rows, float32 and bfloat16, three seeds, default scalars, and the result compared with the
reference's. Mutants that this sees need no kit; the self-test says how many they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from trivet.contracts.declaration import ACTIVATION
from trivet.judging.statistics import same_bits
from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import ProviderFault, compute, invoke, one_thread
from trivet_conformance.calls.layouts import Layout
from trivet_conformance.calls.points import Point, make
from trivet_conformance.families import value
from trivet_conformance.families.case import claimed
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.subject.subject import Subject, Target

ROWS: Final = 64
SEEDS: Final = (0, 1, 2)
DTYPES: Final = (torch.float32, torch.bfloat16)


def seen(subject: Subject) -> str:
    """What the plain test says of a provider; empty where it passes."""
    with one_thread():
        for target in subject.targets:
            for seed in SEEDS:
                bench = Bench(seed)
                for point in points(target):
                    if told := _told(target, bench, point):
                        return told
    return ""


def points(target: Target) -> Iterator[Point]:
    """The calls of the plain test: one ordinary size in both dtypes."""
    op = target.op
    dims = next(s for s in op.cases.sizes if all(s.values()))
    for dtype in DTYPES:
        dtypes = {ACTIVATION: dtype} | dict.fromkeys(grid.variables(op), dtype)
        if not target.dtype_refusal(dtypes):
            yield make({**dims, **dict.fromkeys(op.stars, ROWS)}, {}, dtypes)


def _told(target: Target, bench: Bench, point: Point) -> str:
    op = target.op
    try:
        placed = target.lay_out(bench, point, Layout())
        given = bench.arguments(op, point)
    except (Disagreement, ProviderFault) as problem:
        return str(problem)
    if placed is None or target.refusal(placed):
        return ""
    wanted = compute(op, op.reference, given)
    try:
        outcome = invoke(op, target.form, target.implementation.function, placed)
        torch.testing.assert_close(list(outcome.results), list(wanted))
    except (ProviderFault, AssertionError, TypeError) as problem:
        return f"{point.text}: {str(problem).strip().splitlines()[0]}"
    return ""


def differs(subject: Subject) -> bool:
    """Whether a provider's results differ from the reference's in bits on a call that is checked.

    A legal variant that does not differ shows nothing about how the kit judges differences.
    """
    bench = Bench(0, quick=True)
    with one_thread():
        return any(
            _differs(target, bench, point, layout)
            for target in subject.targets
            for dtypes, reason in claimed(target)
            if not reason
            for point, layout in value.points(target, bench, dtypes)
        )


def _differs(target: Target, bench: Bench, point: Point, layout: Layout) -> bool:
    op = target.op
    placed = target.lay_out(bench, point, layout)
    if placed is None:
        return False
    results = invoke(op, target.form, target.implementation.function, placed).results
    wanted = compute(op, op.reference, bench.arguments(op, point))
    return not all(
        bool(same_bits(a.reshape(b.shape), b, any_nan=True).all())
        for a, b in zip(results, wanted, strict=True)
    )
