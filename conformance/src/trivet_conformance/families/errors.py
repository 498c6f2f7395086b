"""Errors: a call that is none is refused by name, and leaves nothing behind.

Under ``TRIVET_CHECK`` a settled bind refuses what no implementation may be given, with a
``DomainError`` that names the argument. The function itself, and a bind without the check, must
refuse a wrong dtype or rank that the reference cannot compute either, and never break down. After
each of them a right call gives what it gave before, right or wrong: the same bits where calls
repeat theirs, and nothing beyond the budget that was within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from trivet.contracts.declaration import Operator
from trivet.contracts.signature import Parameter
from trivet.errors import DomainError
from trivet.judging.statistics import same_bits
from trivet.settings import read
from trivet_conformance.calls.calling import ProviderFault, copied, foreign, invoke, on_cpu
from trivet_conformance.calls.grid import is_dtype
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.case import (
    Case,
    on_bases,
)
from trivet_conformance.families.dispatch import facts_of
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.truth import Bench, Truth
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "errors"
LEVEL: Final = "L2"
TOKENS: Final = 6
BREAKDOWN: Final = (SystemError, MemoryError, RecursionError)
"""What no refusal is: the interpreter itself is in trouble."""


@dataclass(frozen=True)
class Wrong:
    """One wrong argument.

    Args:
        argument: its name.
        what: what is wrong with it.
        value: it, from the right one.
        promised: whether core promises to refuse it under ``TRIVET_CHECK``.
        own: whether a function that checks must refuse it itself: dtype and rank.
    """

    argument: str
    what: str
    value: Callable[[Any], Any]
    promised: bool = True
    own: bool = False


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every wrong argument of one call for each claimed dtype; for the first one when quick."""

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        if bench.quick and not first:
            return
        for wrong in wrongs(target.op, bench.arguments(target.op, point)):
            name = f"{target.label}:{wrong.argument}={wrong.what}:{point.text}"
            run = partial(_finding, target, bench, point, home, wrong)
            yield Case(name, point.dtype_text, run)

    return on_bases(target, bench, TOKENS, 1, making)


def wrongs(op: Operator, given: Mapping[str, Any]) -> Iterator[Wrong]:
    """Calls with one wrong argument, from the declaration."""
    for p in op.signature.parameters:
        if p.tensor and given[p.name] is not None:
            yield from _tensor_wrongs(op, p, given)
        elif p.kind == "Tensor[]":
            yield Wrong(p.name, "none", lambda _: None)
            yield Wrong(p.name, "numbers", lambda _: [1.0])
        elif p.scalar:
            yield Wrong(p.name, "none", lambda _: None)
            yield Wrong(p.name, "a list", lambda _: [1])
            if p.name in op.choices:
                yield Wrong(p.name, "no choice", lambda _: "no such choice")


def _tensor_wrongs(op: Operator, p: Parameter, given: Mapping[str, Any]) -> Iterator[Wrong]:
    name, shape, t = p.name, op.shapes[p.name], given[p.name]
    if not p.optional:
        yield Wrong(name, "none", lambda _: None)
    yield Wrong(name, "a number", lambda _: 1.0)
    yield Wrong(name, "a list", lambda t: t.tolist())
    if not shape.star:
        yield Wrong(name, "a dim more", lambda t: t.unsqueeze(0), own=True)
    if shape.inner and t.dim():
        yield Wrong(name, "a scalar", lambda t: t.new_zeros(()), own=True)
    if t.dim() and t.shape[-1] > 2 and _repeated(op, name, -1, given):
        yield Wrong(name, "a narrow dim", lambda t: t[..., :-1].contiguous())
        yield Wrong(name, "an empty dim", lambda t: t[..., :0])
    if t.dim() > 1 and t.shape[0] > 2 and _repeated(op, name, 0, given):
        yield Wrong(name, "a row less", lambda t: t[:-1])
    if is_dtype(op.dtypes[name]):
        yield Wrong(name, "another dtype", lambda t: t.to(torch.float64), own=True)
    yield Wrong(name, "on meta", lambda t: t.to("meta"), promised=False)


def _repeated(op: Operator, name: str, position: int, given: Mapping[str, Any]) -> bool:
    """Whether another argument has the same dim, so that they contradict."""
    dims = op.shapes[name].dims
    wanted = dims[position].name
    others = (
        d.name for a, s in op.shapes.items() if a != name and given[a] is not None for d in s.dims
    )
    return bool(dims) and wanted in others and dims[position].text.lstrip("*") == wanted


def _finding(target: Target, bench: Bench, point: Point, home: Layout, wrong: Wrong) -> Finding:
    inputs = point.to_json() | {"argument": wrong.argument, "wrong": wrong.what}
    function = target.implementation.function
    try:
        before = _right(target, bench, point, home, function)
        again = _right(target, bench, point, home, function)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    problems, notes = [], []
    facts = facts_of(target, _placed(target, bench, point, home))
    for who, bound, named in _bound(target, wrong, facts):
        placed = _broken(target, bench, point, home, wrong)
        must = named or (_own(target, wrong) and _reference_refuses(target, placed))
        problem = refusal(target, bound, placed, wrong, named=named)
        if problem and (must or problem.startswith("breaks down")):
            problems.append(f"{who} {problem}")
        elif problem:
            notes.append(f"{who} {problem}, which nothing forbids")
    try:
        after = _right(target, bench, point, home, function)
    except ProviderFault as fault:
        problems.append(f"a right call after it {fault}")
    else:
        if change := _changed(target, bench.truth(target.op, point), (before, again), after):
            problems.append(f"a right call after it gives other results than before it: {change}")
    if problems:
        return Finding(Status.FAIL, "; ".join(problems), 1.0, inputs, tuple(notes))
    placed = _broken(target, bench, point, home, wrong)
    shown = {"silence": _computes, "a crash": _crashes}
    accepted = [
        n for n, f in shown.items() if not refusal(target, f, placed, wrong, named=wrong.promised)
    ]
    if accepted:
        reason = f"the check has no power: it accepts {' and '.join(accepted)}"
        return Finding(Status.ERROR, reason, inputs=inputs)
    return Finding(Status.REFUSED_OK, "", 0.0, inputs, tuple(notes), len(shown))


def _bound(
    target: Target, wrong: Wrong, facts: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Who is called: a checked bind, a plain one, the function; and whether it must tell all.

    The checked bind is a settled one: core checks no call before its guard has looked at it.
    """
    device, name = target.device, target.bound_name
    prefer = {target.op.name: target.provider}
    binder = device.binder
    if wrong.promised:
        settings = replace(read(), check=True)
        policy = binder.policy(prefer=prefer, settings=settings)
        yield "a checked bind", binder.bind(name, facts, policy), True
    if target.implementation.claim.checks:
        yield "a bind", device.bind(name, {}, prefer=prefer), False
        yield "the function", target.implementation.function, False


def refusal(
    target: Target, function: Callable[..., Any], placed: Placed, wrong: Wrong, *, named: bool
) -> str:
    """What is wrong with how a call is refused; empty where it is refused as it must be."""
    names = target.op.signature.names()
    keyword = {"out": placed.arguments["out"]} if target.form == "out" else {}
    try:
        foreign(function, *(placed.arguments[n] for n in names), **keyword)
    except ProviderFault as fault:
        error = fault.error
        if isinstance(error, BREAKDOWN):
            return f"breaks down: it {fault}"
        if named and not isinstance(error, DomainError):
            return f"{fault}, not DomainError"
        if named and not _names(target.op, wrong.argument, str(error)):
            return f"does not name {wrong.argument!r}: {fault}"
        return ""
    return f"accepts {wrong.argument} that is {wrong.what}"


def _own(target: Target, wrong: Wrong) -> bool:
    """Whether a function must refuse a call itself.

    Who states a domain states what it checks. Who states none takes what can be computed, but
    a first tensor without dims has no results at all.
    """
    first = wrong.argument == target.op.tensors[0] and wrong.what == "a scalar"
    return first or (wrong.own and bool(target.implementation.domain))


def _names(op: Operator, argument: str, text: str) -> bool:
    """Whether an error speaks of an argument or of a dim of it."""
    dims = [d.name for d in op.shapes[argument].dims] if argument in op.shapes else []
    return any(n in text for n in (argument, *dims))


def _reference_refuses(target: Target, placed: Placed) -> bool:
    """Whether the reference cannot compute a call either: then it has no right results.

    It is asked on the host, where a wrong index is an error and not the end of a device.
    """
    op = target.op
    own = {
        n: copied(v.cpu() if isinstance(v, torch.Tensor) and not v.is_meta else v)
        for n, v in placed.arguments.items()
    }
    try:
        op.reference(*(own[n] for n in op.signature.names()))
    except Exception:  # noqa: BLE001 - any error says that the call means nothing
        return True
    return False


def _broken(target: Target, bench: Bench, point: Point, home: Layout, wrong: Wrong) -> Placed:
    placed = _placed(target, bench, point, home)
    placed.arguments[wrong.argument] = wrong.value(placed.arguments[wrong.argument])
    return placed


def _placed(target: Target, bench: Bench, point: Point, home: Layout) -> Placed:
    placed = target.lay_out(bench, point, home)
    if placed is None:
        msg = "no such call"
        raise ValueError(msg)
    return placed


def _right(
    target: Target, bench: Bench, point: Point, home: Layout, function: Callable[..., Any]
) -> list[Any]:
    placed = _placed(target, bench, point, home)
    return [copied(r) for r in on_cpu(invoke(target.op, target.form, function, placed).results)]


def _changed(
    target: Target, truth: Truth, before: tuple[list[Any], list[Any]], after: list[Any]
) -> str:
    """What a wrong call did to the right one after it; empty where it is as it was.

    Results that were wrong before are the value family's: where calls do not repeat their bits,
    only results that were right can be seen to change.
    """
    op = target.op
    now = judge(op, truth, after).problems
    if _alike(*before):
        if _alike(before[0], after):
            return ""
        return "; ".join(now) or "other bits, though calls before it repeated theirs"
    if any(judge(op, truth, results).problems for results in before):
        return ""
    return "; ".join(now)


def _alike(a: list[Any], b: list[Any]) -> bool:
    return all(bool(same_bits(x, y, any_nan=True).all()) for x, y in zip(a, b, strict=True))


# --- power -----------------------------------------------------------------------------------


def _computes(*arguments: object, out: object = None) -> None:
    """Takes any call in silence."""
    del arguments, out


def _crashes(*arguments: object, out: object = None) -> None:
    """Ends in an error of the interpreter."""
    del arguments, out
    msg = "null argument to internal routine"
    raise SystemError(msg)
