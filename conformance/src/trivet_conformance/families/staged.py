"""Staged: weights that a provider prepares, and schedules that it makes once a step.

Everything goes through a real plan: ``plan.prepare``, ``plan.at``, ``step.use`` and
``step.schedule``. A pack belongs to its weight and its provider, a schedule to its step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.binding.plan import Plan
from trivet.binding.prepared import Handle
from trivet.binding.step import Step
from trivet.errors import OrderError
from trivet.judging.statistics import same_bits
from trivet_conformance.calls.calling import ProviderFault, copied, foreign, invoke, on_cpu
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.around import Around
from trivet_conformance.families.case import (
    Case,
    on_bases,
    valid,
)
from trivet_conformance.families.dispatch import facts_of
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "staged"
LEVEL: Final = "L2"
TOKENS: Final = 6
SITES: Final = ("first", "second")


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Packs of plain and square weights, and schedules, for each claimed dtype."""
    scheduled = target.implementation.claim.prepare_step is not None
    if not target.own_pack and not scheduled:
        finding = Finding(Status.NOT_SUPPORTED, "it prepares neither weights nor steps")
        yield Case(f"{target.label}:stages", "", lambda: finding)
        return

    def making(base: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        points = [("pack", base)] if target.own_pack else []
        points += [("square", p) for p in _square(target, bench, base)]
        points += [("schedule", base)] if scheduled else []
        for what, point in points:
            staged = _Staged(target, bench, point, home)
            check = staged.schedules if what == "schedule" else staged.packs
            run = partial(staged.guarded, check)
            yield Case(f"{target.label}:{what}:{point.text}", point.dtype_text, run)

    yield from on_bases(target, bench, TOKENS, 1 if bench.quick else 3, making)


def _square(target: Target, bench: Bench, base: Point) -> Iterator[Point]:
    """The point with a weight that has as many rows as columns, where its dims can be told."""
    if not target.own_pack:
        return
    given = bench.arguments(target.op, base)
    shape = given[_lists(target)[0]][0].shape
    dims = [next((n for n, v in base.dims if v == size), "") for size in shape]
    if len(dims) == 2 and all(dims) and dims[0] != dims[1]:
        side = max(shape)
        point = base.with_dims(**dict.fromkeys(dims, side))
        if valid(target, bench, point) and target.home(bench, point) is not None:
            yield point


def _lists(target: Target) -> list[str]:
    return [p.name for p in target.op.signature.parameters if p.kind == "Tensor[]"]


class _Staged(Around):
    """One call through a plan."""

    def guarded(self, run: Callable[[], Finding]) -> Finding:
        """As for other calls, where the plan runs this provider at all."""

        def here() -> Finding:
            if reason := self.elsewhere():
                return Finding(Status.NOT_RUN, reason, inputs=self.point.to_json())
            return run()

        return super().guarded(here)

    @cached_property
    def plan(self) -> Plan:
        """A plan of two sites of the operator; leading dims are step variables."""
        return self._plan(self.target.provider)

    def _plan(self, provider: str) -> Plan:
        op = self.target.op
        facts = facts_of(self.target, self.bare_call(0))
        facts |= {n: v for n, v in self.point.dims if n in op.where}
        facts = {n: v for n, v in facts.items() if n not in op.stars}
        sites = dict.fromkeys(SITES, (self.target.bound_name, facts))
        return self.target.device.plan(sites, prefer={op.name: provider}, lock=False)

    def step(self, tokens: int | None = None) -> Step:
        """A step of this many tokens, by default the point's."""
        stars = {n: v for n, v in self.point.dims if n in self.target.op.stars}
        return self.plan.at(**{n: v if tokens is None else tokens for n, v in stars.items()})

    def elsewhere(self) -> str:
        """Why the plan runs another provider; empty where it runs this one."""
        runs = self.step().providers()[SITES[0]]
        return "" if runs == self.target.provider else f"a plan runs {runs} here"

    def bare_call(self, draw: int) -> Placed:
        """The call with the reference's own pack and no schedule."""
        layout = replace(self.home, scheduled=False)
        placed = self.target.lay_out(self.bench, self.point, layout, draw=draw, adapted=False)
        if placed is None:
            msg = "no such call"
            raise ValueError(msg)
        return placed

    def run(self, lists: Mapping[str, Sequence[Tensor]], site: str, draw: int = 0) -> list[Any]:
        """The results of a site with a pack or a schedule in place."""
        placed = self.bare_call(draw)
        placed.arguments.update({n: list(v) for n, v in lists.items()})
        function = self.step().__dict__[site]
        return on_cpu(invoke(self.target.op, self.target.form, function, placed).results)

    def wrong(self, results: list[Any]) -> str:
        """What is wrong with the results of the first draw."""
        truth = self.bench.truth(self.target.op, self.point)
        return "; ".join(judge(self.target.op, truth, results).problems)

    def concluded(self, problems: list[str], wrong: Mapping[str, list[Any]]) -> Finding:
        """The finding; results of another weight or step must be refused."""
        inputs = self.point.to_json()
        if problems:
            return Finding(Status.FAIL, "; ".join(problems), 1.0, inputs)
        accepted = [name for name, results in wrong.items() if not self.wrong(results)]
        if accepted:
            reason = f"the check has no power: it accepts {', '.join(accepted)}"
            return Finding(Status.ERROR, reason, inputs=inputs)
        return Finding(Status.PASS, inputs=inputs, power=len(wrong))

    # --- packs -----------------------------------------------------------------------------

    def packs(self) -> Finding:
        """A decoy is prepared and called before; then the weight, twice, between calls of both."""
        name = _lists(self.target)[0]
        (decoy, _), (weight, bias) = self._weight(1), self._weight(0)
        before = weight.clone()
        other = self._prepare(SITES[1], decoy, None)
        handle = self._prepare(SITES[0], weight, bias)
        problems = [] if _alike([weight], [before]) else ["prepare writes the weight"]
        used = {SITES[0]: self._used(handle), SITES[1]: self._used(other)}
        strange = self.run({name: used[SITES[1]]}, SITES[1])
        first = self.run({name: used[SITES[0]]}, SITES[0])
        if wrong := self.wrong(first):
            problems.append(wrong)
        if not self.wrong(strange):
            problems.append("the pack of another weight gives the results of this one")
        again = self._prepare(SITES[0], weight, bias)
        if not _alike(_dense(self._used(again)), _dense(used[SITES[0]])):
            problems.append("prepare gives another pack for the same weight")
        for site, want in ((SITES[1], strange), (SITES[0], first)):
            if not _alike(self.run({name: used[site]}, site), want):
                problems.append("two weights, called in turn, give other results than before")
        problems += self._smaller(name, used[SITES[0]], first)
        problems += self._aliases(name, weight, decoy, used[SITES[0]], first)
        problems += self._foreign(name)
        op = self.target.op
        given = self.bare_call(0).arguments | {name: [self._weight(1)[0]]}
        shown = on_cpu([op.reference(*(given[n] for n in op.signature.names()))])
        return self.concluded(problems, {"the product with another weight": shown})

    def _weight(self, draw: int) -> tuple[Tensor, Tensor | None]:
        given = self.bench.arguments(self.target.op, self.point, draw)
        device = self.target.device.torch
        bias = given.get("bias")
        weight = given[_lists(self.target)[0]][0]
        return weight.to(device).clone(), None if bias is None else bias.to(device).clone()

    def _prepare(self, site: str, weight: Tensor, bias: Tensor | None) -> Handle:
        handle: Handle = foreign(self.plan.prepare, site, weight, bias)
        return handle

    def _used(self, handle: Handle, tokens: int | None = None) -> list[Tensor]:
        """The pack as an engine gets it, inside a tree."""
        used: list[Tensor] = self.step(tokens).use({"layer": [handle]})["layer"][0]
        return used

    def _smaller(self, name: str, pack: list[Tensor], first: list[Any]) -> list[str]:
        """The same pack in a step of one token, and then again in the first one."""
        small = self.point.with_dims(**dict.fromkeys(self.target.op.stars, 1))
        placed = self.target.lay_out(self.bench, small, Layout(), adapted=False)
        if placed is not None and not self.target.refusal(placed):
            placed.arguments[name] = list(pack)
            step = self.step(1)
            results = invoke(self.target.op, self.target.form, step.__dict__[SITES[0]], placed)
            if any(not isinstance(r, Tensor) for r in results.results):
                return ["a step of one token has no results"]
        if _alike(self.run({name: pack}, SITES[0]), first):
            return []
        return ["a step of another size changed the pack"]

    def _aliases(
        self, name: str, weight: Tensor, decoy: Tensor, pack: list[Tensor], first: list[Any]
    ) -> list[str]:
        """Whether a pack that is not the weight itself changes with it."""
        if any(t is weight for t in pack):
            return []
        weight.copy_(decoy)
        if _alike(self.run({name: pack}, SITES[0]), first):
            return []
        return ["the pack is not the weight, and changes when the weight is written"]

    def _foreign(self, name: str) -> list[str]:
        """A handle without a pack of this provider, and lists that no ``prepare`` gives."""
        problems, weight = [], self._weight(0)[0]
        if not self.target.implementation.is_reference:
            handle = self._plan("reference").prepare(SITES[0], weight)
            if self.target.provider not in handle.packs:
                try:
                    self._used(handle)
                    problems.append("a handle of another provider gives a pack")
                except OrderError:
                    pass
        try:
            self.run({name: []}, SITES[0])
        except ProviderFault as fault:
            crash = isinstance(fault.error, (SystemError, MemoryError))
            return [*problems, f"an empty pack: {fault}"] if crash else problems
        return [*problems, "an empty pack gives results"]

    # --- schedules -------------------------------------------------------------------------

    def schedules(self) -> Finding:
        """A schedule of other lengths is made and used before, and made again in between."""
        name = next(n for n in _lists(self.target))
        made = {draw: self._schedule(draw) for draw in (1,)}
        self.run({name: made[1]}, SITES[0], draw=1)
        made[0] = self._schedule(0)
        kept = copied(made[0])
        first = self.run({name: made[0]}, SITES[0])
        problems = [wrong] if (wrong := self.wrong(first)) else []
        self._schedule(1)
        if not _alike(made[0], kept):
            problems.append("the schedule of a later step was written into this one's")
        if not _alike(self.run({name: made[0]}, SITES[1]), first):
            problems.append("a second layer of one step gives other results")
        problems += self._again(made[1], kept)
        shown = self.run({name: made[0]}, SITES[0], draw=1)
        return self.concluded(problems, {"the results of other inputs": shown})

    def _schedule(self, draw: int, out: list[Tensor] | None = None) -> list[Tensor]:
        prepare_step = self.target.implementation.claim.prepare_step
        arguments = self.bare_call(draw).arguments
        names = [] if prepare_step is None else inspect.signature(prepare_step).parameters
        values = [arguments[n] for n in names if n in arguments]
        made: list[Tensor] = foreign(self.step().schedule, SITES[0], *values, out=out)
        return made

    def _again(self, memory: list[Tensor], want: list[Tensor]) -> list[str]:
        """The same memory written again, as for a capture."""
        places = [t.data_ptr() for t in memory]
        if [t.shape for t in memory] != [t.shape for t in want]:
            return []
        again = self._schedule(0, out=memory)
        if [t.data_ptr() for t in again] != places:
            return ["with out it makes a schedule elsewhere"]
        return [] if _alike(again, want) else ["with out it makes another schedule"]


def _alike(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and bool(same_bits(x, y, any_nan=True).all())
        for x, y in zip(a, b, strict=True)
    )


def _dense(pack: Sequence[Tensor]) -> list[Tensor]:
    """A pack in memory that can be compared."""
    return [t if t.layout is torch.strided else t.to_dense() for t in pack]
