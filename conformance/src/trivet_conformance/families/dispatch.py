"""Dispatch: what is claimed is what runs, and claiming it costs nothing.

Under facts that prove a domain an engine holds the vendor's own function; an observed plan counts
one call a call; who is forbidden does not run; terms decide without doing anything; and a fresh
process offers the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trivet.judging.statistics import same_bits
from trivet.selection.choose import Choice
from trivet.selection.facts import Call, decide
from trivet.settings import read
from trivet_conformance.calls.calling import ProviderFault, copied, invoke, on_cpu
from trivet_conformance.calls.layouts import Layout, Placed, leads
from trivet_conformance.calls.points import Point
from trivet_conformance.calls.proving import proving_facts
from trivet_conformance.families.case import (
    Case,
    on_bases,
)
from trivet_conformance.families.elsewhere import offered, offered_elsewhere
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "dispatch"
LEVEL: Final = "L1"
TOKENS: Final = 6
AGAIN: Final = 5
"""How often a term is asked the same."""

SITE: Final = "site"


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Binds and counted calls for each claimed dtype; order, terms and a fresh process once."""

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        checks: dict[str, Callable[..., Finding]] = {"bind": _bound, "counts": _counted}
        if first:
            checks |= {"forbidden": _forbidden, "terms": _decided, "process": _fresh}
        for name, check in checks.items():
            run = partial(check, target, bench, point, home)
            yield Case(f"{target.label}:{name}:{point.text}", point.dtype_text, run)

    return on_bases(target, bench, TOKENS, 1, making)


def facts_of(target: Target, placed: Placed) -> dict[str, Any]:
    """Facts that are true of a call and prove the domain of the implementation."""
    op, call = target.op, Call(target.op, placed.arguments)
    facts: dict[str, Any] = {
        n: placed.arguments[n] for n in op.scalars if n in op.parameters and n not in op.where
    }
    given = [n for n in op.tensors if placed.arguments[n] is not None]
    facts |= {f"{n}.dtype": placed.arguments[n].dtype for n in given}
    for path, value in proving_facts(target.implementation).items():
        attribute = path.partition(".")[2]
        if path == "dtype":
            continue
        known = call.value(path) if attribute in ("", "dtype", "rank") else value
        facts[path] = value if known is Ellipsis or _unknown(known) else known
    return facts


def _unknown(value: object) -> bool:
    return not (value is None or isinstance(value, (bool, int, float, str, torch.dtype)))


def _bound(target: Target, bench: Bench, point: Point, home: Layout) -> Finding:
    """A bind under proving facts is the very function, at every bind."""
    placed = _placed(target, bench, point, home)
    facts = facts_of(target, placed)
    prefer = {target.op.name: target.provider}
    settings = replace(read(), check=False, trace=False)
    binder = target.device.binder
    policy = binder.policy(prefer=prefer, settings=settings)
    held = [binder.bind(target.bound_name, facts, policy) for _ in range(2)]
    choice = binder.choose(target.bound_name, facts, policy)
    own = [_of_site(target, choice) for _ in range(2)]
    inputs = point.to_json()
    if any(another(h, own) for h in held):
        reason = f"a bind whose facts prove the domain holds {held[0]!r}, not the function itself"
        return Finding(Status.FAIL, reason, 1.0, inputs)
    accepted = [w for w in (partial(own[0]), _wrapper(own[0])) if not another(w, own)]
    if accepted:
        return Finding(Status.ERROR, "the check has no power: it accepts a wrapper", inputs=inputs)
    return Finding(Status.PASS, inputs=inputs, power=2)


def _of_site(target: Target, choice: Choice) -> Callable[..., Any]:
    """The vendor's function for a site: what its claim makes of the facts, or the marked one."""
    own, resolve = target.implementation.function, target.implementation.claim.resolve
    if resolve is None or choice.form != target.form:
        return own
    made: Callable[..., Any] = resolve(choice.facts.values) or own
    return made


def another(held: Callable[..., Any], own: Sequence[Callable[..., Any]]) -> bool:
    """Whether what a bind holds is not the vendor's function for the site.

    ``own`` is that function, asked for twice: where a claim makes a new one each time, the same
    code is the same function.
    """
    if own[0] is own[1]:
        return held is not own[0]
    code = getattr(own[0], "__code__", None)
    return code is None or getattr(held, "__code__", None) is not code


def _wrapper(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def wrapper(*values: Any, **named: Any) -> Any:
        return own(*values, **named)

    return wrapper


def _counted(target: Target, bench: Bench, point: Point, home: Layout) -> Finding:
    """An observed plan counts one call of this provider a call, for any folding of its rows."""
    inputs = point.to_json()
    placed = _placed(target, bench, point, home)
    plan = target.device.plan(
        {SITE: (target.bound_name, facts_of(target, placed))},
        observe=True,
        prefer={target.op.name: target.provider},
        lock=False,
    )
    folded = [home, *(replace(home, lead=lead) for lead in leads(target.op, point))]
    calls = 0
    truth = bench.truth(target.op, point)
    for layout in folded:
        placed_so = target.lay_out(bench, point, layout)
        if placed_so is None or target.refusal(placed_so):
            continue
        try:
            outcome = invoke(target.op, target.form, plan.at().__dict__[SITE], placed_so)
        except ProviderFault as fault:
            text = f"it declares {layout.text}, and {fault}"
            return Finding(Status.FAIL, text, 1.0, inputs)
        calls += 1
        verdict = judge(target.op, truth, on_cpu(outcome.results))
        if verdict.problems:
            text = f"it declares {layout.text}: {'; '.join(verdict.problems)}"
            return Finding(Status.FAIL, text, 1.0, inputs)
    wanted = {(SITE, target.provider): calls}
    if (counts := plan.counts()) != wanted:
        return Finding(Status.FAIL, f"{calls} calls were counted as {counts}", 1.0, inputs)
    wrong = [{}, {(SITE, target.provider): calls + 1}, {(SITE, "another"): calls}]
    if any(counts == w for w in wrong):
        return Finding(Status.ERROR, "the check has no power", inputs=inputs)
    return Finding(Status.PASS, inputs=inputs, power=len(wrong))


def _forbidden(target: Target, bench: Bench, point: Point, home: Layout) -> Finding:
    """Who is forbidden does not run, and the next one does it right."""
    inputs, op = point.to_json(), target.op
    if target.implementation.is_reference:
        return Finding(Status.NOT_SUPPORTED, "there is nothing after the reference", inputs=inputs)
    binder = target.device.binder
    settings = replace(read(), forbid={op.name: (target.provider,)})
    policy = binder.policy(settings=settings)
    placed = target.lay_out(bench, point, home, adapted=False)
    if placed is None:
        return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
    choice = binder.choose(target.bound_name, {}, policy)
    if any(arm.provider == target.provider for arm in choice.arms):
        return Finding(Status.FAIL, "it is forbidden, and is an arm", 1.0, inputs)
    try:
        outcome = invoke(op, target.form, binder.bind(target.bound_name, {}, policy), placed)
    except ProviderFault as fault:
        return Finding(Status.FAIL, f"it is forbidden, and the next one {fault}", 1.0, inputs)
    verdict = judge(op, bench.truth(op, point), on_cpu(outcome.results))
    if verdict.problems:
        return Finding(Status.FAIL, "; ".join(verdict.problems), 1.0, inputs)
    allowed = binder.choose(target.bound_name, {}, binder.policy(prefer={op.name: target.provider}))
    shown = any(arm.provider == target.provider for arm in allowed.arms)
    return Finding(Status.REFUSED_OK, inputs=inputs, power=int(shown))


# --- terms -----------------------------------------------------------------------------------


def _decided(target: Target, bench: Bench, point: Point, home: Layout) -> Finding:
    """Terms decide alike every time, run no operation and leave the arguments alone."""
    inputs = point.to_json()
    placed = _placed(target, bench, point, home)
    call = Call(target.op, placed.arguments)
    asked = [
        (str(t), partial(decide, target.op, t, call))
        for t in target.implementation.domain
        if not t.path.startswith("out")
    ]
    for name, ask in asked:
        if problems := impurities(ask, placed):
            return Finding(Status.FAIL, f"{name} {'; '.join(problems)}", 1.0, inputs)
    accepted = [name for name, ask in _impure(placed) if not impurities(ask, placed)]
    if accepted:
        reason = f"the check has no power: it accepts a term that {', '.join(accepted)}"
        return Finding(Status.ERROR, reason, inputs=inputs)
    return Finding(Status.PASS, inputs=inputs, power=len(list(_impure(placed))))


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation of torch, those that only look at a tensor's data included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def impurities(ask: Callable[[], Any], placed: Placed) -> list[str]:
    """What deciding does besides deciding."""
    before = {n: copied(v) for n, v in placed.arguments.items()}
    with _Watching() as watching:
        answers = [ask() for _ in range(AGAIN)]
    found = []
    if any(a != answers[0] for a in answers):
        found.append(f"decides {answers[0]}, then {next(a for a in answers if a != answers[0])}")
    if watching.seen:
        found.append(f"runs {watching.seen[0]} while it decides")
    changed = [
        n
        for n, t in placed.arguments.items()
        if isinstance(t, torch.Tensor) and not bool(same_bits(t, before[n]).all())
    ]
    return found + [f"changes {n} while it decides" for n in changed]


def _impure(placed: Placed) -> Iterator[tuple[str, Callable[[], Any]]]:
    answers = iter([True, False] * AGAIN)
    yield "alternates", lambda: next(answers)
    yield "allocates", lambda: torch.empty(1).dim() == 1
    first = next(t for t in placed.arguments.values() if isinstance(t, torch.Tensor))
    yield "waits for the device", lambda: bool((first == 0).all())


# --- a fresh process -------------------------------------------------------------------------


def _fresh(target: Target, bench: Bench, point: Point, home: Layout) -> Finding:
    """A fresh process is offered the same, in the same order, with the same plans."""
    del bench, home
    inputs = point.to_json()
    device, own = target.device, target.provider
    found = {line.plugin for line in device.report}
    if own.partition("/")[0] not in found:
        reason = "it is not installed, so another process does not know it"
        return Finding(Status.NOT_RUN, reason, inputs=inputs)
    here = list(offered(device, own))
    there, problem = offered_elsewhere(device.info.kind, own, len(here))
    if problem:
        return Finding(Status.FAIL, f"a fresh process that asks for it: {problem}", 1.0, inputs)
    if _differs(here, there):
        return Finding(Status.FAIL, f"here {here}, in a fresh process {there}", 1.0, inputs)
    wrong = [here[:-1], [*here, here[-1]], [[*here[0][:-1], "another"], *here[1:]]]
    if not all(_differs(w, there) for w in wrong):
        return Finding(Status.ERROR, "the check has no power", inputs=inputs)
    return Finding(Status.PASS, inputs=inputs, power=len(wrong))


def _differs(here: Sequence[Sequence[str]], there: Sequence[Sequence[str]]) -> bool:
    return list(map(list, here)) != list(map(list, there))


def _placed(target: Target, bench: Bench, point: Point, home: Layout) -> Placed:
    placed = target.lay_out(bench, point, home)
    if placed is None:
        msg = "no such call"
        raise ValueError(msg)
    return placed
