"""Repeat: a call depends on its arguments now, not on the calls before it.

The same storage gets new contents, new storage the same ones; calls of other sizes and dtypes go
between; storage is used again for another size. Results are judged by value every time, and bit
by bit where an implementation says that it is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import copied, invoke, on_cpu
from trivet_conformance.calls.layouts import GUARD, Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.around import Around
from trivet_conformance.families.case import (
    Case,
    base_points,
    call,
    on_bases,
)
from trivet_conformance.judging.truth import Bench
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

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        one = _Repeated(target, bench, point, home)
        for run in (one.loop, one.interleaved, one.resized):
            name = f"{target.label}:{run.__name__}:{point.text}"
            yield Case(name, point.dtype_text, partial(one.guarded, run))

    return on_bases(target, bench, TOKENS, 1 if bench.quick else 2, making)


class _Repeated(Around):
    """Calls around one point."""

    def loop(self) -> Finding:
        """Many calls on the same storage, with two contents in turn."""
        placed = self.placed(1)
        if placed is None:
            return self.no_call()
        found = []
        for turn in range(CALLS):
            source = self.placed((turn + 1) % 2)
            if source is None or not refill(placed, source):
                return Finding(Status.NOT_RUN, "the sizes of inputs differ between draws")
            results = [copied(r) for r in call(self.target, placed).results]
            if turn % 2:
                found.append((f"call {turn + 1} on the same storage", on_cpu(results)))
        return self.settled(found)

    def interleaved(self) -> Finding:
        """The call, others with other sizes and dtypes, and the call again in new storage."""
        found: list[tuple[str, list[Any]]] = []
        kept: list[Placed] = []
        for name, between in (("the first call", ()), ("a later call", self._others())):
            kept += [early for early, _ in between]
            for early, form in between:
                invoke(self.target.op, form, self.target.implementation.function, early)
            placed = self.placed()
            if placed is None:
                return self.no_call()
            kept.append(placed)  # alive, so that new storage is new
            results = [copied(r) for r in call(self.target, placed).results]
            found.append((name, on_cpu(results)))
        return self.settled(found)

    def resized(self) -> Finding:
        """Another size at the same addresses, then the call."""
        small = self._small()
        if small is None:
            return Finding(Status.NOT_RUN, "no other size lies inside the domain")
        pair = [self._at(*small).placed(), self.placed()]
        if pair[0] is None or pair[1] is None:
            return self.no_call()
        shared: dict[str, Tensor] = {}
        found: list[tuple[str, list[Any]]] = []
        for turn in (1, 0, 1):
            own = pair[turn]
            if own is None:
                return self.no_call()
            placed = Placed(over(shared, own.arguments, [p.arguments for p in pair if p]), [])
            if self.target.refusal(placed):
                return Finding(Status.NOT_RUN, "the domain excludes such storage")
            results = [copied(r) for r in call(self.target, placed).results]
            if turn:
                found.append((f"call {len(found) * 2 + 1} at the same addresses", on_cpu(results)))
        return self.settled(found)

    def _at(self, point: Point, home: Layout) -> Around:
        return Around(self.target, self.bench, point, home)

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
                placed = self._at(point, home).placed(1)
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
