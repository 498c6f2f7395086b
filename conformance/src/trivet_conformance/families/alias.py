"""Alias: a call writes what its form says and nothing else, and its results are its own.

Every argument lies between canaries. Each form of the provider, its own and those that core
derives from it, must give the functional result bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from trivet.binding.checks import Watch, check_inputs
from trivet.errors import DomainError
from trivet.judging.statistics import same_bits
from trivet.plugins.verification import Implementation
from trivet.selection.derive import derive
from trivet.selection.forms import NEAREST
from trivet_conformance.calls.calling import (
    Outcome,
    ProviderFault,
    compute,
    copied,
    invoke,
    on_cpu,
)
from trivet_conformance.calls.layouts import Layout, packable
from trivet_conformance.calls.points import Point
from trivet_conformance.families.case import (
    Case,
    on_bases,
    value_finding,
)
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "alias"
LEVEL: Final = "L1"
TOKENS: Final = 6


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every form in plain, row-strided and packed layouts; equal arguments; the written rules."""

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        for form, function in forms(target):
            for layout in _layouts(target, bench, point, home, form):
                name = f"{_label(target, form)}:{point.text}:{layout.text}"
                run = partial(_finding, target, bench, point, layout, form, function)
                yield Case(name, point.dtype_text, run)
        yield from _equal_arguments(target, bench, point, home)
        yield from _rules_of_written_arguments(target, bench, point)

    return on_bases(target, bench, TOKENS, 1 if bench.quick else 2, making)


def forms(target: Target) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The forms that engines get from this implementation, with their functions.

    Where the provider supplies a form itself, that implementation answers for it.
    """
    op, own = target.op, target.implementation
    if op.inplace_only:
        yield "inplace", own.function
        return
    for form in NEAREST:
        if _nearest(target, form) is own:
            made = derive(op, own.form, form, own.function)
            if not isinstance(made, str):
                yield form, made.function


def _nearest(target: Target, form: str) -> Implementation:
    """The implementation of this provider from which an engine gets a form."""
    supplied = {i.form: i for i in target.siblings}
    return next(supplied[f] for f in NEAREST[form] if f in supplied)


def _label(target: Target, form: str) -> str:
    return "write" if target.op.inplace_only else form


def _layouts(
    target: Target, bench: Bench, point: Point, home: Layout, form: str
) -> Iterator[Layout]:
    op = target.op
    given = bench.arguments(op, point)
    starred = [n for n in op.tensors if given[n] is not None and op.shapes[n].star]
    rows = tuple((n, "rows64") for n in starred if op.shapes[n].inner)
    found = [home]
    if rows:
        found.append(replace(home, kinds=rows))
    if form == "out":
        found.append(replace(home, kinds=(("out", "rows64"),)))
    if groups := packable(op, given):
        found.append(replace(home, packed=groups))
    for layout in found:
        placed = target.lay_out(bench, point, layout, form)
        if placed is not None and not target.refusal(placed):
            yield layout


def _finding(
    target: Target,
    bench: Bench,
    point: Point,
    layout: Layout,
    form: str,
    function: Callable[..., Any],
) -> Finding:
    op, inputs = target.op, point.to_json() | {"layout": layout.text}
    placed = target.lay_out(bench, point, layout, form)
    again = target.lay_out(bench, point, layout, form, draw=1)
    if placed is None or again is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
    watch = Watch(op, form, target.provider, placed.arguments, sample=False)
    placed.remember()
    try:
        want = functional(target, bench, point)
        outcome = invoke(op, form, function, placed)
        kept = [copied(r) for r in outcome.results]
        problems = complaints(watch, outcome, want)
        later = invoke(op, form, function, again)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    problems += _earlier(outcome, kept, later)
    if problems:
        return Finding(Status.FAIL, "; ".join(problems), 1.0, inputs)
    refused, accepted = 0, []
    for name, spoilt in sabotage(watch, outcome):
        if complaints(watch, spoilt, want):
            refused += 1
        else:
            accepted.append(name)
    if accepted:
        reason = f"the check has no power: it accepts {', '.join(accepted)}"
        return Finding(Status.ERROR, reason, inputs=inputs, power=refused)
    return Finding(Status.PASS, inputs=inputs, power=refused)


def functional(target: Target, bench: Bench, point: Point) -> list[Tensor] | None:
    """The provider's functional results at a point, or None where there is no such form.

    Raises:
        ProviderFault: it raised.
    """
    op = target.op
    if op.inplace_only:
        return None
    nearest = _nearest(target, "functional")
    made = derive(op, nearest.form, "functional", nearest.function)
    home = target.home(bench, point)
    placed = target.lay_out(bench, point, home or Layout(), "functional")
    if isinstance(made, str) or placed is None or target.refusal(placed):
        return None
    return invoke(op, "functional", made.function, placed).results


def complaints(watch: Watch, outcome: Outcome, want: list[Tensor] | None) -> list[str]:
    """What a call wrote or shared that it must not, and where a form differs."""
    form = watch.form
    found = [b.what for b in watch.judge(outcome.raw) if b.kind in ("mutation", "alias")]
    found += [f"memory around {n} changed" for n in outcome.placed.disturbed()]
    for i, (got, right) in enumerate(zip(outcome.results, want or (), strict=False)):
        if not isinstance(got, Tensor) or got.dtype != right.dtype:
            continue  # the meta family says so
        if got.numel() != right.numel() or not _equal(got.reshape(right.shape), right):
            found.append(f"result {i} of the {form} form differs from the functional one")
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(same_bits(a, b, any_nan=True).all())


def _earlier(outcome: Outcome, kept: list[Any], later: Outcome) -> list[str]:
    """Whether a second call changed the results of the first, or gave them again."""
    found = []
    for i, (now, then) in enumerate(zip(outcome.results, kept, strict=True)):
        if isinstance(now, Tensor) and not _equal(now, then):
            found.append(f"a later call changed result {i} of this one")
    return found + [f"two calls return one memory as result {i}" for i in _shared(outcome, later)]


def _shared(outcome: Outcome, later: Outcome) -> list[int]:
    pairs = enumerate(zip(outcome.results, later.results, strict=False))
    return [i for i, (a, b) in pairs if _memory(a) == _memory(b) != 0]


def _memory(t: object) -> int:
    plain = isinstance(t, Tensor) and t.numel() and t.layout is torch.strided
    return t.untyped_storage().data_ptr() if isinstance(t, Tensor) and plain else 0


def _equal_arguments(target: Target, bench: Bench, base: Point, home: Layout) -> Iterator[Case]:
    """The functional form takes one tensor for two arguments; judged by value."""
    op = target.op
    given = bench.arguments(op, base)
    tensors = [n for n in op.tensors if given[n] is not None and given[n].dtype.is_floating_point]
    for a, b in pairwise(tensors):
        alike = op.shapes[a].text == op.shapes[b].text and given[a].dtype == given[b].dtype
        if alike and {a, b}.isdisjoint(op.written(target.form)) and op.dtypes[a] == op.dtypes[b]:
            point = replace(base, mix=f"same@{a}+{b}")
            run = partial(_one_tensor, target, bench, point, home, (a, b))
            yield Case(f"{target.label}:{point.text}", point.dtype_text, run)


def _one_tensor(
    target: Target, bench: Bench, point: Point, home: Layout, pair: tuple[str, str]
) -> Finding:
    placed = target.lay_out(bench, point, home)
    if placed is None:
        return value_finding(target, bench, point, home)
    try:
        compute(target.op, target.op.reference, bench.arguments(target.op, point))
    except DomainError:
        reason = f"{pair[1]} may not have the values of {pair[0]}"
        return Finding(Status.NOT_RUN, reason, inputs=point.to_json())
    placed.arguments[pair[1]] = placed.arguments[pair[0]]
    try:
        outcome = invoke(target.op, target.form, target.implementation.function, placed)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, point.to_json())
    truth = bench.truth(target.op, point)
    return settle(target.op, truth, judge(target.op, truth, on_cpu(outcome.results)))


def _rules_of_written_arguments(target: Target, bench: Bench, point: Point) -> Iterator[Case]:
    """Core refuses calls whose written arguments overlap or repeat, before a kernel sees them."""
    op = target.op
    for name in op.written(target.form):
        if name == "out" or bench.arguments(op, point)[name] is None:
            continue
        case = f"{target.label}:{point.text}:rule={name}"
        yield Case(case, point.dtype_text, partial(_rule, target, bench, point, name))


def _rule(target: Target, bench: Bench, point: Point, name: str) -> Finding:
    op, inputs = target.op, point.to_json()
    placed = target.lay_out(bench, point, Layout())
    if placed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
    whole = placed.arguments[name]
    several = next((i for i, n in enumerate(whole.shape) if n > 1), 0)  # a dim that can repeat
    wrong: dict[str, dict[str, Any]] = {
        "a stride of 0": {name: whole.narrow(several, 0, 1).expand_as(whole)},
        **{
            f"memory shared with {other}": {other: t.new_empty(0).set_(
                whole.untyped_storage(), whole.storage_offset(), t.shape, t.contiguous().stride()
            )}
            for other, t in placed.arguments.items()
            if isinstance(t, Tensor) and other != name and t.dtype == whole.dtype
            and 0 < t.numel() <= whole.numel()
        },
    }  # fmt: skip
    accepted = []
    for what, change in wrong.items():
        try:
            check_inputs(op, target.form, placed.arguments | change)
        except DomainError:
            continue
        accepted.append(what)
    if accepted:
        reason = f"core accepts a written {name} with {', '.join(accepted)}"
        return Finding(Status.ERROR, reason, inputs=inputs)
    return Finding(Status.REFUSED_OK, inputs=inputs, power=len(wrong))


# --- power -----------------------------------------------------------------------------------


def sabotage(watch: Watch, outcome: Outcome) -> Iterator[tuple[str, Outcome]]:
    """The outcome of a right call with one wrong thing done; it is undone before the next."""
    for name, t in watch.read.items():
        if t.numel() and t.layout is torch.strided:
            first = t[(slice(0, 1),) * t.dim()]
            yield from _written(first, f"a write to {name}", outcome)
    for base in outcome.placed.bases:
        views = "+".join(base.views)
        yield from _written(base.memory[:1], f"a write before {views}", outcome)
        yield from _written(base.memory[-1:], f"a write after {views}", outcome)
    first = outcome.results[0]
    if watch.form == "functional" and isinstance(first, Tensor) and first.numel():
        for name, t in watch.read.items():
            if t.numel() and t.layout is torch.strided:
                raw = _with_first(outcome.raw, t.view_as(t))
                yield f"a view of {name}", replace(outcome, raw=raw)


def _written(spot: Tensor, name: str, outcome: Outcome) -> Iterator[tuple[str, Outcome]]:
    """The outcome while a place that is not the call's has another value."""
    before = spot.clone()
    spot.fill_(1 if not bool((before == 1).any()) else 2)
    try:
        yield name, outcome
    finally:
        spot.copy_(before)


def _with_first(raw: Any, first: Tensor) -> Any:
    return first if isinstance(raw, Tensor) else type(raw)([first, *list(raw)[1:]])
