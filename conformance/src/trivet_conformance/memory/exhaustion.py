"""No room: the error is the contract's, nothing has changed, and later there is room again."""

from __future__ import annotations

from typing import Final

import torch

from trivet.contracts.memory import Stats
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.held import TAG, Held
from trivet_conformance.memory.judged import Wrong, asked, refused
from trivet_conformance.subject.leg import Leg

IMPOSSIBLE: Final = (1 << 50, 1 << 62)
"""Bytes that no device has; the larger ones overflow where sizes are rounded up."""

CHUNK: Final = 1 << 20
BUDGET: Final = 48
"""Chunks that are asked for: what is exhausted by fewer is filled up, what is larger is not."""


def impossible(leg: Leg, bench: Bench) -> None:
    """Sizes that nothing has are refused as exhaustion, and change nothing."""
    with Held(leg, bench.seed) as held:
        for nbytes in (1, 5000, 70_000):
            held.take(nbytes)
        before = leg.stats()
        for nbytes in (*IMPOSSIBLE, *IMPOSSIBLE):
            what = f"allocate({nbytes})"
            refused(torch.OutOfMemoryError, what, leg.allocator.allocate, nbytes, tag=TAG)
            held.verify()
            _unchanged(before, leg.stats(), what)
        held.take(5000)


def exhausted(leg: Leg, bench: Bench) -> str:
    """Filled up, given back in another order, used in between, and filled up just as far again."""
    with Held(leg, bench.seed) as held:
        first = _fill(leg, held)
        held.give_all()
        for _ in range(200):
            for nbytes in (0, held.random.choice([1, 300, 5000, 70_000, 200_000])):
                held.take(nbytes)
            if len(held) > 20:
                held.give(held.random.choice(list(held)))
        held.give_all()
        second = _fill(leg, held)
    if second < first:
        msg = (
            f"at first {first} buffers of 1 MiB fit; after all was given back {second} do: "
            "something stays behind"
        )
        raise Wrong(msg)
    return "" if first < BUDGET else f"no exhaustion within {BUDGET} MiB; no more was asked for"


def _fill(leg: Leg, held: Held) -> int:
    """How many chunks fit; the refusal that ends it has changed nothing."""
    for count in range(BUDGET):
        before = leg.stats()
        try:
            held.take(CHUNK)
        except torch.OutOfMemoryError:
            _unchanged(before, leg.stats(), "a refused allocation")
            held.verify()
            if count:
                _one_more(leg, held)
            return count
    return BUDGET


def _one_more(leg: Leg, held: Held) -> None:
    """What a full device gets back it can give out again; a refusal twice is as good as once."""
    for _ in range(3):
        refused_or_held(leg, held)
    held.give(next(iter(held)))
    try:
        held.take(CHUNK)
    except torch.OutOfMemoryError as error:
        msg = "a buffer was given back to a full device, and none of its size can be had"
        raise Wrong(msg) from error


def refused_or_held(leg: Leg, held: Held) -> None:
    """One attempt on a full device; a buffer that nevertheless came is given back."""
    try:
        raw = asked(leg.allocator.allocate, CHUNK, tag=TAG)
    except torch.OutOfMemoryError:
        return
    if problem := held.problem(raw, CHUNK):
        raise Wrong(problem)
    asked(leg.allocator.deallocate, raw)


def _unchanged(before: Stats, after: Stats, what: str) -> None:
    for name in ("allocated_bytes", "max_allocated_bytes"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            msg = f"{what} fails, and {name} goes from {old} to {new}"
            raise Wrong(msg)
