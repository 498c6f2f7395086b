"""Meta: shape, dtype, strides, device and packing of results are what the declaration says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trivet.binding.checks import Watch
from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import Outcome, ProviderFault
from trivet_conformance.calls.domain import fit
from trivet_conformance.calls.layouts import Layout, leads
from trivet_conformance.calls.points import Point, make
from trivet_conformance.families.case import (
    Case,
    call,
    claimed,
    nothing_inside,
    unclaimed,
    valid,
)
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "meta"
LEVEL: Final = "L1"


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every declared size, with every way to fold leading dims that the domain takes."""
    op = target.op
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        found: dict[tuple[Point, Layout], None] = {}
        for i, dims in enumerate(grid.sizes(op, quick=True)):
            scalars, absents = grid.scalar_sets(op), grid.absent_sets(op)
            raw = make(dims, scalars[i % len(scalars)], dtypes, "normal", absents[i % len(absents)])
            point = fit(op, target.implementation.domain, raw)
            if valid(target, bench, point):
                found |= {(point, layout): None for layout in _foldings(target, bench, point)}
        if not found:
            yield nothing_inside(target, dtypes)
        for point, layout in found:
            name = f"{target.label}:{point.text}:{layout.text}"
            yield Case(name, point.dtype_text, partial(_finding, target, bench, point, layout))


def _foldings(target: Target, bench: Bench, point: Point) -> Iterator[Layout]:
    schedules = (False, True) if target.implementation.claim.prepare_step is not None else (False,)
    for lead in [None, *leads(target.op, point)]:
        for scheduled in schedules:
            layout = Layout(lead=lead, scheduled=scheduled)
            placed = target.lay_out(bench, point, layout)
            if placed is not None and not target.refusal(placed):
                yield layout


def _finding(target: Target, bench: Bench, point: Point, layout: Layout) -> Finding:
    inputs = point.to_json() | {"layout": layout.text}
    placed = target.lay_out(bench, point, layout)
    if placed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
    watch = Watch(target.op, target.form, target.provider, placed.arguments, sample=False)
    try:
        outcome = call(target, placed)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    try:
        given = bench.arguments(target.op, point)
        asked = _with_lists(placed.arguments, given)
        key = "fake", target.op.name, target.form, *((n, _told(v)) for n, v in asked.items())
        fake = bench.once(key, partial(fake_results, target, asked))
    except Exception as error:  # noqa: BLE001 - the reference is a declaration under test here
        reason = f"the reference cannot run on fake tensors: {type(error).__name__}: {error}"
        return Finding(Status.ERROR, reason, inputs=inputs)
    if problems := complaints(watch, outcome, fake):
        return Finding(Status.FAIL, "; ".join(problems), 1.0, inputs)
    accepted = [
        name
        for name, raw in wrong_returns(outcome.raw)
        if not complaints(watch, replace(outcome, raw=raw, results=_listed(raw)), fake)
    ]
    shown = sum(1 for _ in wrong_returns(outcome.raw))
    if accepted:
        reason = f"the check has no power: it accepts {', '.join(accepted)}"
        return Finding(Status.ERROR, reason, inputs=inputs, power=shown - len(accepted))
    return Finding(Status.PASS, inputs=inputs, power=shown)


def complaints(watch: Watch, outcome: Outcome, fake: list[Tensor] | None) -> list[str]:
    """What is wrong with the outside of results: core's rule, and the fake ones."""
    found = [b.what for b in watch.judge(outcome.raw) if b.kind == "meta"]
    if found and (watch.form != "functional" or watch.op.inplace_only):
        found = [f"{f}: an in-place or out form returns nothing: delete the return" for f in found]
    if found or fake is None:
        return found
    for i, (got, want) in enumerate(zip(outcome.results, fake, strict=True)):
        real = _outside(got)
        if real != _outside(want):
            found.append(f"result {i} is {real}, the reference gives {_outside(want)}")
    return found


def _outside(t: Tensor) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    """Shape, dtype and strides; strides of dims that have no neighbour say nothing."""
    strides = () if 0 in t.shape else t.stride()
    told = tuple(s for s, n in zip(strides, t.shape, strict=False) if n > 1)
    return tuple(t.shape), str(t.dtype), told


def fake_results(target: Target, arguments: Mapping[str, Any]) -> list[Tensor] | None:
    """What the reference gives on fake tensors; None where that cannot be asked."""
    op = target.op
    if not op.traceable or op.inplace_only or target.form != "functional":
        return None
    with FakeTensorMode() as mode:
        return _listed(op.reference(*(_fake(mode, arguments[n]) for n in op.signature.names())))


def _told(value: Any) -> Any:
    """Everything that a fake tensor knows of a value."""
    if isinstance(value, list):
        return tuple(map(_told, value))
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return type(value), value


def _with_lists(arguments: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The call with the reference's own packs and schedules in place of the provider's."""
    where = next((v.device for v in arguments.values() if isinstance(v, Tensor)), None)
    return {
        n: [t.to(where) for t in given[n]] if isinstance(v, list) and n in given else v
        for n, v in arguments.items()
    }


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, list):
        return [_fake(mode, t) for t in value]
    return mode.from_tensor(value) if isinstance(value, Tensor) else value


def _listed(raw: Any) -> list[Any]:
    return list(raw) if isinstance(raw, (list, tuple)) else [raw]


# --- power -----------------------------------------------------------------------------------


class Wrapped(Tensor):
    """A tensor subclass: what a lazy result hides behind."""


def wrong_returns(raw: Any) -> Iterator[tuple[str, Any]]:
    """What a function returned, with one thing wrong at a time."""
    if raw is None:
        yield "a result of a form that returns nothing", torch.zeros(1)
        return
    first = _listed(raw)[0]
    makers: dict[str, Callable[[Tensor], Tensor]] = {
        "another dtype": lambda t: t.to(torch.float64 if t.dtype != torch.float64 else torch.int8),
        "one dim more": lambda t: t.unsqueeze(0),
        "a tensor subclass": lambda t: t.clone().as_subclass(Wrapped),
        "another device": lambda t: t.to("meta"),
    }
    if first.dim() and first.shape[-1] > 1 and first.numel():
        makers["a stride of two"] = lambda t: t.repeat_interleave(2, -1)[..., ::2]
    for name, wrong in makers.items():
        yield name, _with_first(raw, wrong(first))
    if isinstance(raw, Tensor):
        yield "a list", [raw]
    else:
        yield "another container", list(raw) if isinstance(raw, tuple) else tuple(raw)
        yield "a result too few", type(raw)(list(raw)[:-1])


def _with_first(raw: Any, first: Tensor) -> Any:
    return first if isinstance(raw, Tensor) else type(raw)([first, *list(raw)[1:]])
