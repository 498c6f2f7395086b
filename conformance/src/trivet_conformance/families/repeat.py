"""Repeat: a call depends on its arguments now, not on the calls before it.

The same storage gets new contents, new storage the same ones; calls of other sizes and dtypes go
between; storage is used again for another size. Results are judged by value every time, and bit
by bit where an implementation says that it is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import ProviderFault, copied, invoke, on_cpu
from trivet_conformance.calls.layouts import GUARD, Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.case import (
    Case,
    base_points,
    call,
    claimed,
    nothing_inside,
    unclaimed,
)
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.statistics import same_bits
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "repeat"
LEVEL: Final = "L2"
TOKENS: Final = 6
OTHER_TOKENS: Final = 3
CALLS: Final = 20
"""Calls of a loop, on the same storage with two contents in turn."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """A loop on one storage, other calls between two equal ones, and storage of another size."""
    for dtypes, reason in claimed(target):
        if reason:
            yield unclaimed(target, dtypes, reason)
            continue
        bases = base_points(target, dtypes, bench, TOKENS, 1 if bench.quick else 2)
        if not bases:
            yield nothing_inside(target, dtypes)
        for point, home in bases:
            one = _One(target, bench, point, home)
            for what, run in (
                ("loop", one.loop),
                ("interleaved", one.interleaved),
                ("resized", one.resized),
            ):
                name = f"{target.label}:{what}:{point.text}"
                yield Case(name, point.dtype_text, partial(one.guarded, run))


@dataclass(frozen=True)
class _One:
    """Calls around one point.

    Args:
        target: the implementation.
        bench: inputs and truths.
        point: what is judged.
        home: its layout.
    """

    target: Target
    bench: Bench
    point: Point
    home: Layout

    def guarded(self, run: Any) -> Finding:
        """Runs a check; a provider that raises fails, a declaration that cannot judge is wrong."""
        inputs = self.point.to_json()
        try:
            found: Finding = run()
        except ProviderFault as fault:
            return Finding(Status.FAIL, str(fault), 1.0, inputs)
        except Disagreement as problem:
            return Finding(Status.ERROR, str(problem), inputs=inputs)
        return found

    def loop(self) -> Finding:
        """Many calls on the same storage, with two contents in turn."""
        placed = self._placed(self.point, self.home, 1)
        if placed is None:
            return self._no_call()
        found = []
        for turn in range(CALLS):
            source = self._placed(self.point, self.home, (turn + 1) % 2)
            if source is None or not refill(placed, source):
                return Finding(Status.NOT_RUN, "the sizes of inputs differ between draws")
            results = [copied(r) for r in call(self.target, placed).results]
            if turn % 2:
                found.append((f"call {turn + 1} on the same storage", on_cpu(results)))
        return self._settled(found)

    def interleaved(self) -> Finding:
        """The call, others with other sizes and dtypes, and the call again in new storage."""
        found: list[tuple[str, list[Any]]] = []
        kept: list[Placed] = []
        for name, between in (("the first call", ()), ("a later call", self._others())):
            kept += [early for early, _ in between]
            for early, form in between:
                invoke(self.target.op, form, self.target.implementation.function, early)
            placed = self._placed(self.point, self.home, 0)
            if placed is None:
                return self._no_call()
            kept.append(placed)  # alive, so that new storage is new
            results = [copied(r) for r in call(self.target, placed).results]
            found.append((name, on_cpu(results)))
        return self._settled(found)

    def resized(self) -> Finding:
        """Another size at the same addresses, then the call."""
        small = self._small()
        if small is None:
            return Finding(Status.NOT_RUN, "no other size lies inside the domain")
        pair = [self._placed(*small, 0), self._placed(self.point, self.home, 0)]
        if pair[0] is None or pair[1] is None:
            return self._no_call()
        shared: dict[str, Tensor] = {}
        found: list[tuple[str, list[Any]]] = []
        for turn in (1, 0, 1):
            own = pair[turn]
            if own is None:
                return self._no_call()
            placed = Placed(over(shared, own.arguments, [p.arguments for p in pair if p]), [])
            if self.target.refusal(placed):
                return Finding(Status.NOT_RUN, "the domain excludes such storage")
            results = [copied(r) for r in call(self.target, placed).results]
            if turn:
                found.append((f"call {len(found) * 2 + 1} at the same addresses", on_cpu(results)))
        return self._settled(found)

    def _settled(self, found: list[tuple[str, list[Any]]]) -> Finding:
        """Judges results of equal calls; the first is settled with the power of the judgement."""
        target, truth = self.target, self.bench.truth(self.target.op, self.point)
        inputs = self.point.to_json()
        bitwise = "deterministic" in target.implementation.claim.properties
        for name, results in found:
            verdict = judge(target.op, truth, results)
            if verdict.problems:
                text = f"{name}: {'; '.join(verdict.problems)}"
                return Finding(Status.FAIL, text, verdict.margin, inputs)
            if bitwise and not equal(results, found[0][1]):
                text = f"{name} differs in bits, though declared deterministic"
                return Finding(Status.FAIL, text, 1.0, inputs)
        return settle(target.op, truth, judge(target.op, truth, found[-1][1]))

    def _no_call(self) -> Finding:
        return Finding(Status.NOT_RUN, "no such call", inputs=self.point.to_json())

    def _placed(self, point: Point, layout: Layout, draw: int) -> Placed | None:
        return self.target.lay_out(self.bench, point, layout, draw=draw)

    def _small(self) -> tuple[Point, Layout] | None:
        dtypes = dict(self.point.dtypes)
        for point, home in base_points(self.target, dtypes, self.bench, OTHER_TOKENS, 2):
            if point != self.point:
                return point, home
        return None

    def _others(self) -> list[tuple[Placed, str]]:
        """Calls of another size in the same dtypes, and in other dtypes."""
        own = dict(self.point.dtypes)
        sets = [d for d in grid.dtype_sets(self.target.op) if not self.target.dtype_refusal(d)]
        found = []
        for dtypes in [own, *[d for d in sets if d != own][:2]]:
            tokens = OTHER_TOKENS if dtypes == own else TOKENS
            for point, home in base_points(self.target, dtypes, self.bench, tokens, 1):
                placed = self._placed(point, home, 1)
                if placed is not None:
                    found.append((placed, self.target.form))
        return found


def refill(placed: Placed, source: Placed) -> bool:
    """Copies the contents of one call into the storage of another; False where sizes differ."""
    for name, value in source.arguments.items():
        own = placed.arguments[name]
        if isinstance(value, Tensor) and isinstance(own, Tensor):
            if value.shape != own.shape:
                return False
            own.copy_(value)
        elif isinstance(value, list) and alike(value, own):
            for mine, other in zip(own, value, strict=True):
                mine.copy_(other)
        else:
            placed.arguments[name] = value
    return True


def alike(value: list[Tensor], own: Any) -> bool:
    """Whether two lists hold tensors of the same shapes that can be copied."""
    return len(value) == len(own) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.layout is torch.strided
        for a, b in zip(value, own, strict=True)
    )


def over(
    shared: dict[str, Tensor], arguments: Mapping[str, Any], both: list[dict[str, Any]]
) -> dict[str, Any]:
    """The arguments as dense views at the start of memory that several calls share."""
    found = dict(arguments)
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            continue
        if name not in shared:
            others = [a[name] for a in both if isinstance(a[name], Tensor)]
            size = max(math.prod(t.shape) for t in others) + 2 * GUARD
            shared[name] = torch.zeros(size, dtype=value.dtype, device=value.device)
        memory = shared[name][GUARD : GUARD + value.numel()]
        found[name] = memory.view(value.shape).copy_(value)
    return found


def equal(a: list[Any], b: list[Any]) -> bool:
    """Whether results are the same bit by bit; a NaN equals every other NaN."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and bool(same_bits(x, y, any_nan=True).all())
        for x, y in zip(a, b, strict=True)
    )
