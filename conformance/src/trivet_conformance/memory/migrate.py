"""Migrate: bytes arrive where they were sent, nothing else changes, and sources survive errors."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import torch

from trivet.contracts.memory import Copy, Cost, Migrator, Tier
from trivet.errors import MemoryFault
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.held import TAG, pattern
from trivet_conformance.memory.judged import Check, Wrong, asked, case, lacks, not_run, refused
from trivet_conformance.result import Finding
from trivet_conformance.subject.leg import Leg

NAME: Final = "memory.migrate"
LEVEL: Final = "L1"

SIZE: Final = 100_003
RUNS: Final = ((0, 0, 4096), (5000, 4097, 1), (5001, 8000, 0), (70_001, 33_333, 30_001))
"""(offset in the source, offset in the target, bytes) of one batch."""

SOON: Final = 0.05
"""Seconds in which a transfer that was released would still write, were it to."""


def provider(leg: Leg) -> str:
    """Whose migrator it is; core copies with torch where there is none."""
    return leg.plugin


def cases(leg: Leg, bench: Bench) -> Iterator[Case]:
    """The routes, then every check on every route."""
    if not leg.brings(Migrator):
        yield case("routes", lacks(f"{leg.plugin} brings no Migrator"), leg, bench)
        return
    yield case("routes", _routes, leg, bench)
    checks = {f.__name__.strip("_"): f for f in (_copies, _outside, _overlap, _released, _freed)}
    for source, target in sorted(leg.provided.routes()):
        for name, check in checks.items():
            yield case(f"{source}-{target}:{name}", _on(source, target, check), leg, bench)
    yield case("unknown_route", _unknown, leg, bench)


def _routes(leg: Leg, bench: Bench) -> str:
    """Routes are pairs of tiers, the same at any time; costs are numbers or unknown."""
    del bench
    found = asked(leg.provided.routes)
    if not isinstance(found, frozenset) or found != asked(leg.provided.routes):
        msg = f"routes returns {found!r:.80}, no frozenset that stays the same"
        raise Wrong(msg)
    for source, target in found:
        if not {source, target} <= set(Tier):
            msg = f"the route {source!r} to {target!r} has a tier that is none"
            raise Wrong(msg)
        for nbytes in (0, 1 << 20):
            cost = asked(leg.provided.estimate, source, target, nbytes)
            if not isinstance(cost, Cost):
                msg = f"estimate returns {type(cost).__name__}, no Cost"
                raise Wrong(msg)
            known = [n for n in (cost.seconds, cost.bytes_per_second) if n is not None]
            if not all(n >= 0 for n in known):
                msg = f"estimate returns {cost}"
                raise Wrong(msg)
    return ", ".join(sorted(f"{a} to {b}" for a, b in found)) or "no route"


@dataclass
class _Pair:
    """A source and a target on one route, and what is in them."""

    migrator: Any
    source: torch.Tensor
    target: torch.Tensor

    def fill(self) -> None:
        self.source.copy_(pattern(SIZE, 1))
        self.target.copy_(pattern(SIZE, 2))

    def batch(self, runs: Sequence[tuple[int, int, int]] = RUNS) -> list[Copy]:
        return [Copy(self.source, a, self.target, b, n) for a, b, n in runs]

    def post(self, batch: Sequence[Copy]) -> Any:
        return asked(self.migrator.post, batch)

    def judge(self, runs: Sequence[tuple[int, int, int]], what: str) -> None:
        """The source is as it was, and of the target only the runs changed."""
        if not torch.equal(self.source.cpu(), pattern(SIZE, 1)):
            msg = f"the source has other bytes after {what}"
            raise Wrong(msg)
        want = pattern(SIZE, 2)
        for a, b, n in runs:
            want[b : b + n] = pattern(SIZE, 1)[a : a + n]
        wrong = int((self.target.cpu() != want).sum())
        if wrong:
            msg = f"{wrong} bytes of the target are wrong after {what}"
            raise Wrong(msg)


def _on(source: Tier, target: Tier, check: Callable[[_Pair], Finding | str | None]) -> Check:
    def checked(leg: Leg, bench: Bench) -> Finding | str | None:
        del bench
        makers = [_maker(leg, tier) for tier in (source, target)]
        if None in makers:
            tier = source if makers[0] is None else target
            return not_run(f"nobody here makes a buffer in tier {tier}")
        with _Buffers() as made:
            pair = _Pair(leg.provided, *(made.take(m) for m in makers if m is not None))
            pair.fill()
            return check(pair)

    return checked


class _Buffers:
    """Buffers of several tiers, given back at the end."""

    def __init__(self) -> None:
        self._back: list[Callable[[], object]] = []

    def take(self, maker: Callable[[], tuple[torch.Tensor, Callable[[], object]]]) -> torch.Tensor:
        made, back = maker()
        self._back.append(back)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._back:
            self._back.pop()()


Maker = Callable[[], tuple[torch.Tensor, Callable[[], object]]]


def _maker(leg: Leg, tier: Tier) -> Maker | None:
    """What makes a buffer in a tier; None where nobody here does."""
    if leg.allocator.traits().tier == tier:
        return partial(_allocated, leg)
    plain = partial(torch.empty, SIZE, dtype=torch.uint8)
    if tier == Tier.HOST:
        return lambda: (plain(), lambda: None)
    if tier == Tier.PINNED and torch.accelerator.is_available():
        return lambda: (plain(pin_memory=True), lambda: None)
    if tier == Tier.SHARED:
        return lambda: (_shared(plain()), lambda: None)
    return None


def _shared(raw: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = raw.share_memory_()  # type: ignore[no-untyped-call]
    return made


def _allocated(leg: Leg) -> tuple[torch.Tensor, Callable[[], object]]:
    raw = asked(leg.allocator.allocate, SIZE, tag=TAG)
    return raw, partial(leg.allocator.deallocate, raw)


def _end(transfer: Any) -> None:
    asked(transfer.wait)
    if asked(transfer.poll) is not True:
        msg = "poll is not True after wait"
        raise Wrong(msg)
    asked(transfer.wait)


def _copies(pair: _Pair) -> None:
    """Every byte of every run, by wait and by poll; empty batches are done."""
    transfer = pair.post(pair.batch())
    _end(transfer)
    pair.judge(RUNS, "wait")
    asked(transfer.release)
    pair.fill()
    transfer, end = pair.post(pair.batch()), time.monotonic() + 30
    while not asked(transfer.poll):
        if time.monotonic() > end:
            msg = "poll says for 30 s that a batch is not done"
            raise Wrong(msg)
        time.sleep(0.001)
    pair.judge(RUNS, "poll says that it is done")
    asked(transfer.release)
    empty = pair.post([])
    _end(empty)
    asked(empty.release)


def _outside(pair: _Pair) -> None:
    """A run outside a buffer is refused before anything starts, the good runs before it, too."""
    beyond = ((SIZE - 10, 0, 11), (0, SIZE, 1), (-1, 0, 1), (0, -5, 3), (0, 0, -1))
    for run in beyond:
        what = f"a batch whose last run is {run} of {SIZE} bytes"
        refused(MemoryFault, what, pair.migrator.post, pair.batch([*RUNS, run]))
        time.sleep(SOON / 10)
        pair.judge((), what)


def _overlap(pair: _Pair) -> str:
    """Runs of one batch onto the same bytes: refused, or each byte is of one of them."""
    runs = [(0, 0, 1000), (2000, 500, 1000)]
    try:
        transfer = pair.migrator.post(pair.batch(runs))
    except MemoryFault:
        pair.judge((), "overlapping runs")
        return "overlapping targets are refused"
    _end(transfer)
    asked(transfer.release)
    found, first, second = pair.target.cpu()[500:1000], pattern(SIZE, 1), pattern(SIZE, 1)
    if not ((found == first[500:1000]) | (found == second[2000:2500])).all():
        msg = "bytes on which two runs were sent are of neither"
        raise Wrong(msg)
    return "overlapping targets are written in some order"


def _released(pair: _Pair) -> None:
    """After release, done or not, no target is written and nobody minds another one."""
    for _ in range(3):
        pair.fill()
        transfer = pair.post(pair.batch([(0, 0, SIZE)]))
        asked(transfer.release)
        pair.target.copy_(pattern(SIZE, 3))
        time.sleep(SOON)
        if not torch.equal(pair.target.cpu(), pattern(SIZE, 3)):
            msg = "the target is written after the transfer was released"
            raise Wrong(msg)
        asked(transfer.release)


def _freed(pair: _Pair) -> Finding | None:
    """A transfer that was released keeps nobody's memory."""
    source, target = torch.empty_like(pair.source), torch.empty_like(pair.target)
    if pair.source.is_pinned() or any(map(_is_shared, (pair.source, pair.target))):
        return not_run("these buffers are not torch's own")
    seen = [weakref.ref(source), weakref.ref(target)]
    transfer = pair.post([Copy(source, 0, target, 0, SIZE)])
    asked(transfer.wait)
    asked(transfer.release)
    del source, target
    gc.collect()
    if any(ref() is not None for ref in seen):
        msg = "a buffer of a transfer is still held after release"
        raise Wrong(msg)
    return None


def _is_shared(raw: torch.Tensor) -> bool:
    return bool(raw.is_shared())  # type: ignore[no-untyped-call]


def _unknown(leg: Leg, bench: Bench) -> Finding | None:
    """A route that is none is refused."""
    del bench
    known, makers = leg.provided.routes(), {t: _maker(leg, t) for t in Tier}
    for source, one in makers.items():
        for target, other in makers.items():
            if one is None or other is None or (source, target) in known:
                continue
            with _Buffers() as made:
                pair = _Pair(leg.provided, made.take(one), made.take(other))
                pair.fill()
                if pair.source.device == pair.target.device and {source, target} <= {
                    Tier.HOST, Tier.SHARED, Tier.PINNED,
                }:  # fmt: skip
                    continue  # a tensor does not say which of these it is
                what = f"a copy from {source} to {target}, which is no route,"
                refused(MemoryFault, what, pair.migrator.post, pair.batch())
                pair.judge((), what)
                return None
    return not_run("no two buffers here are on a route that is none")
