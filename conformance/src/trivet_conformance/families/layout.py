"""Layout: both sides of every domain.

Inside, a call must be right in every layout that the domain takes. Just outside, the function
itself must raise ``DomainError``, and a guarded bind that prefers this provider must let the next
one do the work, and do it right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.declaration import Operator
from trivet.contracts.terms import Term
from trivet.errors import DomainError
from trivet.judging.statistics import same_bits
from trivet.plugins.verification import REFERENCE
from trivet_conformance.calls.calling import Outcome, ProviderFault, compute, invoke, on_cpu
from trivet_conformance.calls.domain import breaks
from trivet_conformance.calls.grid import ACTIVATIONS
from trivet_conformance.calls.layouts import Layout, Placed, enumerate_layouts
from trivet_conformance.calls.points import Point, supplied
from trivet_conformance.families.case import (
    Case,
    base_points,
    claimed,
    judged_call,
    nothing_inside,
    unclaimed,
)
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "layout"
LEVEL: Final = "L2"
TOKENS: Final = 6
LARGEST: Final = 1 << 24
"""Elements of a tensor beyond which a bound is not stepped over."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Every layout of every argument, then every term of the domain from outside."""
    first: list[tuple[Point, Layout]] = []
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        bases = base_points(target, dtypes, bench, TOKENS, 1 if bench.quick or first else 2)
        if not bases:
            yield nothing_inside(target, dtypes)
        first = first or bases
        for point, home in bases:
            yield from _inside(target, bench, point, home)
    for position, term in enumerate(target.implementation.domain):
        for point, home in first[:1]:
            yield from _outside(target, bench, position, term, (point, home))


# --- inside ----------------------------------------------------------------------------------


def _inside(target: Target, bench: Bench, base: Point, home: Layout) -> Iterator[Case]:
    op = target.op
    seen: set[tuple[Point, Layout]] = set()
    for layout in enumerate_layouts(
        op,
        bench.arguments(op, base),
        base,
        fixed=supplied(op, base),
        out=target.form == "out",
    ):
        point = _repeated(base, layout)
        full = Layout(
            lead=layout.lead if layout.lead is not None else home.lead,
            kinds=layout.kinds,
            packed=layout.packed,
            scheduled=home.scheduled,
        )
        if (point, full) in seen:
            continue
        seen.add((point, full))
        placed = target.lay_out(bench, point, full)
        if placed is None:
            continue
        if target.refusal(placed):
            case = _Outside(target, bench, point, full)
            yield Case(_name(target, "outside", point, full), point.dtype_text, case.run)
        else:
            run = partial(_inside_finding, target, bench, point, full)
            yield Case(_name(target, "inside", point, full), point.dtype_text, run)


def _repeated(base: Point, layout: Layout) -> Point:
    """The point whose values fit a layout: rows in one memory have one value."""
    for arg, kind in layout.kinds:
        if kind == "expanded":
            return replace(base, mix=f"repeat@{arg}")
    return base


def _name(target: Target, side: str, point: Point, layout: Layout) -> str:
    return f"{target.label}:{side}:{point.text}:{layout.text}"


def _inside_finding(target: Target, bench: Bench, point: Point, layout: Layout) -> Finding:
    found = judged_call(target, bench, point, layout)
    if isinstance(found, Finding):
        return found
    op, truth = target.op, bench.truth(target.op, point)
    finding = settle(op, truth, found)
    if finding.status is not Status.PASS:
        return replace(finding, inputs=_inputs(point, layout))
    if problem := _guard_problem(target, bench, point, layout, inside=True):
        return Finding(Status.FAIL, problem, 1.0, _inputs(point, layout))
    misread = _misread(target, bench, point, layout)
    if misread is not None and not judge(op, truth, misread).problems:
        reason = "the check has no power: it accepts a contiguous reading of these views"
        return Finding(Status.ERROR, reason, finding.margin, _inputs(point, layout))
    power = finding.power + (misread is not None)
    return replace(finding, power=power, inputs=_inputs(point, layout))


def _inputs(point: Point, layout: Layout) -> dict[str, Any]:
    return point.to_json() | {"layout": layout.text}


def _misread(target: Target, bench: Bench, point: Point, layout: Layout) -> list[Tensor] | None:
    """What the reference makes of the views read as if they were contiguous; None if the same.

    Only floating views are misread: a wild index would not be a wrong result but a crash.
    """
    op = target.op
    placed = target.lay_out(bench, point, layout)
    if placed is None:
        return None
    changed, own = False, dict(bench.arguments(op, point))
    for name, view in placed.arguments.items():
        right = own.get(name)
        if not isinstance(right, Tensor) or not right.dtype.is_floating_point or not right.numel():
            continue
        memory = view.untyped_storage()
        flat = torch.empty(0, dtype=view.dtype, device=view.device).set_(memory)
        read = flat[view.storage_offset() :][: right.numel()].cpu().clone()
        if read.numel() < right.numel():
            return None
        if not torch.equal(read, right.reshape(-1)):
            own[name], changed = read.reshape(right.shape), True
    if not changed:
        return None
    try:
        wrong, native = compute(op, op.reference, own), bench.truth(op, point).native
    except DomainError:
        return None  # what lies between the elements means nothing here: no result to compare
    alike = (bool(same_bits(w, n, any_nan=True).all()) for w, n in zip(wrong, native, strict=True))
    return None if all(alike) else wrong


# --- outside ---------------------------------------------------------------------------------


def _outside(
    target: Target, bench: Bench, position: int, term: Term, base: tuple[Point, Layout]
) -> Iterator[Case]:
    """Calls just outside one term; where there is none, a line that says so."""
    found, op = 0, target.op
    for point, layout in breaks(op, term, base[0]):
        if _too_large(op, point):
            continue
        full = layout if layout.lead is not None else replace(layout, lead=base[1].lead)
        case = _Outside(target, bench, point, full)
        if case.refuses(term):
            found += 1
            name = f"{target.label}:term{position}={term}:{point.text}:{full.text}"
            yield Case(name, point.dtype_text, case.run)
    if not found:
        reason = f"no call that the kit can make lies outside {term}"
        finding = Finding(Status.NOT_RUN, reason, inputs=base[0].to_json())
        yield Case(f"{target.label}:term{position}={term}", base[0].dtype_text, lambda: finding)


def _too_large(op: Operator, point: Point) -> bool:
    values = dict(point.dims)
    for shape in op.shapes.values():
        count = 1
        for dim in shape.dims:
            if dim.name in values:
                count *= max(1, dim.size(values))
        if count > LARGEST:
            return True
    return any(v < 0 for v in values.values())


@dataclass(frozen=True)
class _Outside:
    """One call outside the domain."""

    target: Target
    bench: Bench
    point: Point
    layout: Layout

    def place(self) -> Placed | None:
        """The call, or None where the operator knows no such call."""
        if not self.bench.is_call(self.target.op, self.point):
            return None
        try:
            return self.target.lay_out(self.bench, self.point, self.layout)
        except (Disagreement, ProviderFault):
            return None

    def refuses(self, term: Term) -> bool:
        """Whether it is a call, and this term excludes it."""
        placed = self.place()
        if placed is None:
            return False
        only = replace(self.target.implementation.claim, domain=(term,))
        narrowed = replace(self.target.implementation, claim=only)
        return bool(replace(self.target, implementation=narrowed).refusal(placed))

    def run(self) -> Finding:
        """The function itself, then a guarded bind."""
        inputs = _inputs(self.point, self.layout)
        direct = self.place()
        if direct is None:
            return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
        reason = self.target.refusal(direct)
        notes: tuple[str, ...] = ()
        if self.target.implementation.claim.checks:
            if problem := refusal_problem(self.target.implementation.function, self.target, direct):
                return Finding(Status.FAIL, f"{reason}, but {problem}", 1.0, inputs)
        else:
            notes = ("the function does not check (checks=False) and was not called",)
        if problem := _guard_problem(
            self.target, self.bench, self.point, self.layout, inside=False
        ):
            return Finding(Status.FAIL, f"{reason}, but {problem}", 1.0, inputs)
        accepted = [
            wrong.__name__
            for wrong in WRONG_REFUSALS
            if not refusal_problem(wrong, self.target, direct)
        ]
        if accepted:
            text = f"the check has no power: it accepts {', '.join(accepted)}"
            return Finding(Status.ERROR, text, inputs=inputs)
        return Finding(Status.REFUSED_OK, reason, 0.0, inputs, notes, len(WRONG_REFUSALS))


def refusal_problem(function: Callable[..., Any], target: Target, placed: Placed) -> str:
    """What is wrong with how a function refuses a call; empty when it raises ``DomainError``."""
    try:
        invoke(target.op, target.form, function, placed)
    except ProviderFault as fault:
        return "" if isinstance(fault.error, DomainError) else f"it {fault}, not DomainError"
    return "it computes something instead of raising DomainError"


def _guard_problem(
    target: Target, bench: Bench, point: Point, layout: Layout, *, inside: bool
) -> str:
    """What is wrong with a guarded bind that prefers this provider, on one call.

    A pack of its own it gets only where nothing but facts decided that it runs: that is core's
    choice, and no expectation here. Whoever runs is given a pack that it can read.
    """
    op, device, name = target.op, target.device, target.bound_name
    placed = target.lay_out(bench, point, layout, adapted=not target.own_pack)
    if placed is None:
        return "a guarded bind cannot be called"
    prefer: Mapping[str, str] = {op.name: target.provider}
    rows = device.explain(name, {}, arguments=placed.arguments, prefer=prefer)
    runs = next((row.provider for row in rows if row.verdict == "runs"), "nothing")
    own = runs == target.provider
    if not target.own_pack and target.provider != REFERENCE and own != inside:
        return f"a guarded bind says that {runs} runs"
    if target.own_pack and own:
        placed = target.lay_out(bench, point, layout) or placed
    guard = device.bind(name, {}, prefer=prefer)
    try:
        outcome = invoke(op, target.form, guard, placed)
    except ProviderFault as fault:
        return f"a guarded bind {fault}"
    if runs == REFERENCE and not is_judged(point):
        return ""  # it computes in float32, on a device in an order of its own
    return _value_problem(target, bench, point, outcome)


def is_judged(point: Point) -> bool:
    """Whether errors of calls of this dtype are held against a budget."""
    return point.dtype_text.partition(",")[0] in {
        str(a).removeprefix("torch.") for a in ACTIVATIONS
    }


def _value_problem(target: Target, bench: Bench, point: Point, outcome: Outcome) -> str:
    truth = bench.truth(target.op, point)
    verdict = judge(target.op, truth, on_cpu(outcome.results))
    return f"a guarded bind is wrong: {'; '.join(verdict.problems)}" if verdict.problems else ""


# --- power -----------------------------------------------------------------------------------


def _computes(*arguments: object, out: object = None) -> None:
    """Takes any call: a kernel that does not look at what it gets."""
    del arguments, out


def _raises_another(*arguments: object, out: object = None) -> None:
    """Refuses with an error of its own."""
    del arguments, out
    msg = "unsupported"
    raise RuntimeError(msg)


WRONG_REFUSALS: Final = (_computes, _raises_another)
