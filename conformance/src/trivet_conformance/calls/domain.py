"""Both sides of a declared domain: points inside it, and calls that are just outside one term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED
from trivet.contracts.terms import Term
from trivet.contracts.terms.layout import Contiguous, OffsetAligned, Rows
from trivet.contracts.terms.value import (
    Absent,
    Between,
    Divisible,
    Dtype,
    Equal,
    OneOf,
    Presence,
    Present,
    Rank,
)
from trivet_conformance.calls import grid
from trivet_conformance.calls.layouts import Layout, leads
from trivet_conformance.calls.points import Point

ROUNDS: Final = 4
"""How often the terms are gone through; one may undo what another wanted."""


def fit(op: Operator, domain: tuple[Term, ...], point: Point) -> Point:
    """Moves a point into a domain, as far as dims, scalars and optionals can.

    Dims are rounded up to a multiple, clamped to a range or set to the nearest allowed value;
    scalars likewise. Dtypes and layouts are not touched, and what the operator's own generator
    makes cannot be: whether the call lies inside is decided on its arguments.
    """
    dims, scalars, absent = dict(point.dims), dict(point.scalars), set(point.absent)
    for _ in range(ROUNDS):
        before = dict(dims), dict(scalars), set(absent)
        for term in domain:
            if isinstance(term, Presence):
                _place(op, term, dims, absent)
            elif term.path in dims:
                dims[term.path] = int(_nearest(term, dims[term.path], dims))
            elif term.path in op.scalars:
                have = scalars.get(term.path, op.parameters[term.path].default)
                if have is not REQUIRED:
                    wanted = _nearest(term, have, {**dims, **scalars})
                    if wanted != have:
                        scalars[term.path] = wanted
        if before == (dims, scalars, absent):
            break
    return replace(
        point,
        dims=tuple(dims.items()),
        scalars=tuple(scalars.items()),
        absent=tuple(sorted(absent)),
    )


def _place(op: Operator, term: Presence, dims: dict[str, int], absent: set[str]) -> None:
    parameter = op.parameters[term.path]
    if not parameter.optional:
        return
    if not term.wanted:
        absent.add(term.path)
        return
    absent.discard(term.path)
    for dim in op.shapes[term.path].dims:
        known = [s[dim.name] for s in op.cases.sizes if dim.name in s]
        dims.setdefault(dim.name, known[0] if known else 2)


def _nearest(term: Term, value: Any, values: Mapping[str, Any]) -> Any:
    """The nearest value that a term on it accepts; the value itself where it cannot be told."""
    match term:
        case OneOf() if value not in term.values:
            numbers = all(isinstance(v, int) for v in (*term.values, value))
            if numbers and not isinstance(value, bool):
                return min(term.values, key=lambda v: abs(v - value))
            return term.values[0]
        case Between():
            low = value if term.low is None else max(value, term.low)
            return low if term.high is None else min(low, term.high)
        case Divisible():
            return max(-(-value // term.by), min(value, 1)) * term.by
        case Equal():
            return values.get(term.other, value) if isinstance(term.other, str) else term.other
        case _:
            return value


def breaks(op: Operator, term: Term, point: Point) -> Iterator[tuple[Point, Layout]]:
    """Calls that a term refuses, starting from a point inside the domain; some may be no calls."""
    plain = Layout()
    match term:
        case Contiguous() | Rows() | OffsetAligned():
            yield from ((point, layout) for layout in _layouts(op, term, point))
        case Rank():
            for lead in leads(op, point):
                yield point, Layout(lead=lead)
        case Dtype():
            yield from ((p, plain) for p in _dtypes(op, term.path, point))
        case Presence():
            yield from ((p, plain) for p in _presence(op, term, point))
        case Equal() if term.path.endswith(".dtype"):
            for path in term.paths:
                arg = path.partition(".")[0]
                yield from ((p, plain) for p in _dtypes(op, arg, point))
        case _:
            yield from ((p, plain) for p in _values(op, term, point))


def _layouts(op: Operator, term: Term, point: Point) -> Iterator[Layout]:
    arg = term.path
    for kind in ("rows1", "rows64", "inner2", "transposed", "offset1"):
        yield Layout(kinds=((arg, kind),))
    for lead in leads(op, point):
        if len(lead) > 1:
            yield Layout(lead=lead, kinds=((arg, "gaps"),))


def _dtypes(op: Operator, arg: str, point: Point) -> Iterator[Point]:
    variable = op.dtypes.get(arg, ACTIVATION)
    if grid.is_dtype(variable):
        return
    own = dict(point.dtypes)
    for dtype in (*grid.ACTIVATIONS, torch.float64):
        if dtype != own.get(variable):
            yield replace(point, dtypes=tuple((own | {variable: dtype}).items()))
            same = dict.fromkeys(own, dtype)
            if same != own | {variable: dtype}:
                yield replace(point, dtypes=tuple(same.items()))


def _presence(op: Operator, term: Presence, point: Point) -> Iterator[Point]:
    parameter = op.parameters[term.path]
    if parameter.optional:
        dims, absent = dict(point.dims), set(point.absent)
        _place(op, (Absent if term.wanted else Present)(term.path), dims, absent)
        yield replace(point, dims=tuple(dims.items()), absent=tuple(sorted(absent)))


def _values(op: Operator, term: Term, point: Point) -> Iterator[Point]:
    """The nearest values that a term on a dim or scalar refuses."""
    for path in term.paths:
        if path in dict(point.dims):
            yield from (
                point.with_dims(**{path: v}) for v in _outside(term, dict(point.dims)[path])
            )
        elif path in op.scalars:
            scalars = dict(point.scalars)
            have = scalars.get(path, op.parameters[path].default)
            known = [s[path] for s in grid.scalar_sets(op) if path in s]
            for value in [*_outside(term, have), *op.choices.get(path, ()), *known]:
                yield replace(point, scalars=tuple((scalars | {path: value}).items()))


def _outside(term: Term, have: Any) -> list[Any]:
    if isinstance(have, bool):
        return [not have]
    if isinstance(have, str) or have is REQUIRED:
        return []
    match term:
        case Between():
            edges = [] if term.low is None else [term.low - 1]
            return edges + ([] if term.high is None else [term.high + 1])
        case OneOf():
            numbers = [v for v in term.values if isinstance(v, (int, float))]
            return [max(numbers) + 1, min(numbers) - 1] if numbers else []
        case _:
            return [have + 1, have + 2]
