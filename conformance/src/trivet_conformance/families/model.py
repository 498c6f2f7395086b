"""Model: calls at the sizes of real models, through the device's own selection, judged by value.

Every other family calls an implementation itself. Here a call site is bound with the facts of a
model, as an engine does it, the plugin's own providers first; whichever of them the device then
selects must be right. Operators whose weights are packed are bound by plans, not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED
from trivet.errors import TrivetError
from trivet.plugins.resolve import REFERENCE
from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import ProviderFault, invoke, on_cpu
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point, make
from trivet_conformance.calls.profiles import model_calls
from trivet_conformance.families.case import Case
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "model"
LEVEL: Final = "L1"
QUICK: Final = 2
"""Calls of an operator in quick grids, the last declared ones: those of small models."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every call of every model in every activation dtype; once for all providers of a plugin."""
    own = [i for i in target.neighbours if i.operator is target.op]
    if own and own[0] is not target.implementation:
        return
    calls = model_calls(target.op.name)
    for call in calls[-QUICK:] if bench.quick else calls:
        for dtype in grid.ACTIVATIONS:
            dtypes = {ACTIVATION: dtype} | dict.fromkeys(grid.variables(target.op), dtype)
            point = make(dict(call.dims), dict(call.scalars), dtypes)
            sizes = ",".join(f"{n}={v}" for n, v in call.dims)
            name = f"{call.id}:{point.dtype_text}:{sizes}"
            yield Case(name, point.dtype_text, partial(_finding, target, bench, point))


def _finding(target: Target, bench: Bench, point: Point) -> Finding:
    op, inputs = target.op, point.to_json()
    try:
        truth = bench.truth(op, point)
    except Disagreement as problem:
        return Finding(Status.ERROR, str(problem), inputs=inputs)
    placed = target.lay_out(bench, point, Layout(), form_of(op), adapted=False)
    if placed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
    wanted = {op.name: list(dict.fromkeys(i.provider for i in _alike(target)))}
    facts = site_facts(target, point, placed)
    try:
        taken = _taken(target, facts, placed, wanted)
        if taken not in wanted[op.name]:
            return Finding(Status.NOT_SUPPORTED, f"the device selects {taken}", inputs=inputs)
        bound = target.device.bind(op.name, facts, prefer=wanted)
        outcome = invoke(op, form_of(op), bound, placed)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    except TrivetError as error:
        return Finding(Status.FAIL, f"the call site cannot be bound: {error}", 1.0, inputs)
    return settle(op, truth, judge(op, truth, on_cpu(outcome.results)), [f"selected {taken}"])


def form_of(op: Operator) -> str:
    """The form that the operator's plain name binds."""
    return "inplace" if op.inplace_only else "functional"


def _alike(target: Target) -> list[Any]:
    """The plugin's implementations of the operator; core's own where core is under test."""
    return [i for i in target.neighbours if i.operator is target.op] or [target.implementation]


def _taken(
    target: Target, facts: dict[str, Any], placed: Placed, wanted: dict[str, list[str]]
) -> str:
    """Whose implementation runs for the call."""
    if wanted[target.op.name] == [REFERENCE]:
        return REFERENCE
    rows = target.device.explain(target.op.name, facts, arguments=placed.arguments, prefer=wanted)
    return next((row.provider for row in rows if row.verdict == "runs"), REFERENCE)


def site_facts(target: Target, point: Point, placed: Placed) -> dict[str, Any]:
    """What an engine promises at such a site: sizes, dtypes, scalars, and plain memory."""
    op = target.op
    stars = set(op.stars)
    facts: dict[str, Any] = {n: v for n, v in point.dims if n in op.where and n not in stars}
    given = {n: t for n in op.tensors if isinstance(t := placed.arguments.get(n), Tensor)}
    facts |= {f"{n}.dtype": t.dtype for n, t in given.items() if _varies(op.dtypes[n])}
    facts |= {n: None for n in op.tensors if placed.arguments.get(n) is None}
    kept = [n for n in op.scalars if op.parameters[n].default is not REQUIRED]
    facts |= {n: placed.arguments[n] for n in kept}
    return facts | {"contiguous": list(given)}


def _varies(declared: str) -> bool:
    return not isinstance(getattr(torch, declared, None), torch.dtype)
