"""State: a call depends on its arguments, not on what else of the same plugin was called.

The same call is made as the first one of a fresh process, and before, between and after calls of
everything else that the plugin has. Results are judged by value, and bit by bit where an
implementation says that it is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch

from trivet.plugins.verification import Implementation
from trivet_conformance.calls import grid
from trivet_conformance.calls.calling import ProviderFault, copied, on_cpu
from trivet_conformance.calls.domain import fit
from trivet_conformance.calls.fresh import NoFreshCall, fresh_call, packed
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point, make
from trivet_conformance.families.around import Around
from trivet_conformance.families.case import (
    Case,
    base_points,
    call,
    claimed,
    on_bases,
    valid,
)
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "state"
LEVEL: Final = "L2"
TOKENS: Final = 6

_STATUS: Final = {
    "unknown": Status.NOT_RUN,
    "raised": Status.FAIL,
    "died": Status.CRASH,
    "late": Status.TIMEOUT,
}
"""What a call that came to no result in a fresh process means."""

Named = list[tuple[str, list[Any]]]


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """A call in a fresh process (in quick grids of one dtype), and among calls of neighbours."""

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        one = _Stateful(target, bench, point, home)
        for run in (one.fresh, one.neighbours) if first or not bench.quick else (one.neighbours,):
            name = f"{target.label}:{run.__name__}:{point.text}"
            yield Case(name, point.dtype_text, partial(one.guarded, run))

    return on_bases(target, bench, TOKENS, 1, making)


class _Stateful(Around):
    """One call, alone and among others."""

    def guarded(self, run: Callable[[], Finding]) -> Finding:
        """As for other calls; what became of a process that had to be fresh is told too."""
        try:
            return super().guarded(run)
        except NoFreshCall as problem:
            status = _STATUS[problem.what]
            text = f"as the first call of a process: {problem.what}, {problem}"
            margin = float(status is not Status.NOT_RUN)
            return Finding(status, text, margin, self.point.to_json())

    def fresh(self) -> Finding:
        """The call here, and as the first one of a fresh process."""
        placed = self.placed(0)
        if placed is None:
            return self.no_call()
        implementation, device = self.target.implementation, self.target.device
        given = packed(implementation, placed)
        here = on_cpu([copied(r) for r in call(self.target, placed).results])
        there = fresh_call(implementation, device.info.kind, given, device.torch)
        return self.settled([("the first call of a process", there), ("the call here", here)])

    def neighbours(self) -> Finding:
        """The call, its neighbours, another draw, its neighbours on another draw, the call."""
        others = [i for i in self.target.neighbours if i is not self.target.implementation]
        if not others:
            return Finding(Status.NOT_SUPPORTED, "the plugin has nothing else for this device")
        pairs = [p for i in others for p in requests(self.target, self.bench, self.point, i)]
        if not pairs:
            return Finding(Status.NOT_RUN, "no call of what else the plugin has can be made")
        kept: list[Placed] = []  # alive, so that new storage is new
        found: Named = []
        raised: set[str] = set()
        for turn, draw in enumerate((0, 1, 0)):
            placed = self.placed(draw)
            if placed is None:
                return self.no_call()
            kept.append(placed)
            results = on_cpu([copied(r) for r in call(self.target, placed).results])
            if draw == 0:
                found.append(("the call after others" if turn else "the call before", results))
            for other, pair in pairs if turn < 2 else ():
                try:
                    call(other, pair[turn])
                except ProviderFault as fault:
                    raised.add(f"{other.provider} for {other.op.name} {fault}")
        return self.settled(found, (f"{len(pairs)} others were called", *sorted(raised)))


def requests(
    target: Target, bench: Bench, point: Point, other: Implementation
) -> Iterator[tuple[Target, tuple[Placed, Placed]]]:
    """Two calls of a neighbour whose dims and dtypes are the point's where both have them."""
    neighbour = Target(target.device, other, (other,), target.neighbours)
    try:
        for at, home in _compatible(neighbour, bench, point)[:1]:
            pair = [neighbour.lay_out(bench, at, home, draw=draw) for draw in (0, 1)]
            if pair[0] is not None and pair[1] is not None:
                yield neighbour, (pair[0], pair[1])
    except (ProviderFault, Disagreement):
        return  # the neighbour's own families tell it


def _compatible(neighbour: Target, bench: Bench, point: Point) -> list[tuple[Point, Layout]]:
    key = "claimed", neighbour.op.name, neighbour.implementation.domain
    sets = bench.once(key, partial(_sets, neighbour))
    dtypes = _nearest(sets, dict(point.dtypes))
    if dtypes is None:
        return []
    op, own = neighbour.op, dict(point.dims)
    for dims in grid.sizes(op, quick=True):
        sized = dims | dict.fromkeys(op.stars, TOKENS)
        sized |= {n: own[n] for n in sized if n in own}
        if not all(sized.values()):
            continue
        raw = make(sized, grid.scalar_sets(op)[0], dtypes)
        at = fit(op, neighbour.implementation.domain, raw)
        home = neighbour.home(bench, at) if valid(neighbour, bench, at) else None
        if home is not None:
            return [(at, home)]
    return base_points(neighbour, dtypes, bench, TOKENS, 1)


def _sets(neighbour: Target) -> list[dict[str, torch.dtype]]:
    return [dtypes for dtypes, reason in claimed(neighbour) if not reason]


def _nearest(
    sets: list[dict[str, torch.dtype]], own: Mapping[str, torch.dtype]
) -> dict[str, torch.dtype] | None:
    """The claimed dtypes that agree with the most of others; None where none is claimed."""
    return max(sets, key=lambda d: sum(own.get(n) == v for n, v in d.items()), default=None)
