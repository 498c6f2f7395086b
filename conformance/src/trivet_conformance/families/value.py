"""Value: results are as near to the fp64 oracle as the reference's, within a measured budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import torch

from trivet_conformance.calls import grid
from trivet_conformance.calls.domain import fit
from trivet_conformance.calls.layouts import Layout
from trivet_conformance.calls.mixes import MIXES
from trivet_conformance.calls.points import Point, make
from trivet_conformance.families.case import (
    Case,
    claimed,
    nothing_inside,
    unclaimed,
    valid,
    value_finding,
)
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.subject import Target

NAME: Final = "value"
LEVEL: Final = "L1"
QUICK: Final = ("normal", "tiny", "big")
ORDINAL: Final = ("normal", "powers", "rising")
"""Mixes where only equality counts: powers of two make ties, the last may be the largest."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every size with every mix, for each claimed dtype."""
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        found = dict(points(target, bench, dtypes))
        if not found:
            yield nothing_inside(target, dtypes)
        for point, layout in found.items():
            name = f"{target.label}:{point.text}" + (":scheduled" if layout.scheduled else "")
            yield Case(name, point.dtype_text, partial(value_finding, target, bench, point, layout))


def points(
    target: Target, bench: Bench, dtypes: Mapping[str, torch.dtype]
) -> Iterator[tuple[Point, Layout]]:
    """The grid moved into the domain; what no longer is a call is left out."""
    op = target.op
    mixes: tuple[str, ...] = ORDINAL
    if op.budget.kind == "statistical":
        mixes = QUICK if bench.quick else tuple(m for m in MIXES if m != "rising")
    schedules = target.implementation.claim.prepare_step is not None
    for i, (dims, scalars, absent, mix) in enumerate(grid.spread(op, mixes, quick=bench.quick)):
        raw = make(dims, scalars, dtypes, mix, absent)
        point = fit(op, target.implementation.domain, raw)
        if not valid(target, bench, point):
            continue
        home = target.home(bench, point)
        if home is not None:
            scheduled = home.scheduled or (schedules and i % 2 == 0)
            yield point, Layout(lead=home.lead, scheduled=scheduled)
