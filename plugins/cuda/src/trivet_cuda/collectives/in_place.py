"""All-reduce of symmetric memory where it lies: each rank sums its part and writes it to all.

For messages too large to be staged. Ranks meet before and after; each program meets that of its
number on the other ranks, through a count that only rises.
"""

# ruff: noqa: ANN001, ANN202  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from trivet.kernels.triton import Kernel
from trivet_cuda.collectives.words import (
    CHANNEL,
    FAR,
    after_previous,
    first,
    lost,
    put,
    rounded,
    second,
    settle,
    wire,
)


@triton.jit
def _met(flag, count, whom, verdict, patience, TIMED: tl.constexpr):
    """Waits until another rank has come as often; 1 where it did not."""
    behind = (tl.atomic_add(flag, 0, sem="acquire", scope="sys") - count < 0).to(tl.int32)
    turns = behind * 0
    over = behind * 0
    began = patience * 0
    while (behind != 0) & (over == 0):
        behind = (tl.atomic_add(flag, 0, sem="acquire", scope="sys") - count < 0).to(tl.int32)
        turns += 1
        if (turns & 511) == 0 or not TIMED:
            over, began = lost(verdict, turns, began, patience, TIMED)
    if behind != 0:
        tl.store(verdict + 2, whom)
        tl.store(verdict, 1)
    return behind


@triton.jit
def _meet(
    flags, count, o1, o2, o3, o4, o5, o6, o7, verdict, patience, TIMED: tl.constexpr,
    WORLD: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Tells every rank that this one has come, and waits for all."""
    tl.debug_barrier()  # what the program's threads wrote is told by one of them
    tl.atomic_xchg(flags + o1 + (WORLD - 2) * CHANNELS, count, sem="release", scope="sys")
    if WORLD > 2:
        tl.atomic_xchg(flags + o2 + (WORLD - 3) * CHANNELS, count, sem="release", scope="sys")
    if WORLD > 3:
        tl.atomic_xchg(flags + o3 + (WORLD - 4) * CHANNELS, count, sem="release", scope="sys")
    if WORLD > 4:
        tl.atomic_xchg(flags + o4 + (WORLD - 5) * CHANNELS, count, sem="release", scope="sys")
    if WORLD > 5:
        tl.atomic_xchg(flags + o5 + (WORLD - 6) * CHANNELS, count, sem="release", scope="sys")
    if WORLD > 6:
        tl.atomic_xchg(flags + o6 + (WORLD - 7) * CHANNELS, count, sem="release", scope="sys")
    if WORLD > 7:
        tl.atomic_xchg(flags + o7 + (WORLD - 8) * CHANNELS, count, sem="release", scope="sys")
    bad = count * 0
    for behind in tl.static_range(1, WORLD):
        flag = flags + (behind - 1) * CHANNELS
        bad = bad | _met(flag, count, behind, verdict, patience, TIMED)
    tl.debug_barrier()
    return bad


@triton.jit
def _far(step, x1, x2, x3, x4, x5, x6, x7):
    """The distance of the memory of the rank ``step`` after this one; none of its own."""
    near = tl.where(step == 1, x1, tl.where(step == 2, x2, tl.where(step == 3, x3, x1 * 0)))
    far = tl.where(step == 5, x5, tl.where(step == 6, x6, tl.where(step == 7, x7, near)))
    return tl.where(step == 4, x4, far)


@triton.jit
def _in_place(
    x, mine, turns, verdict, o1, o2, o3, o4, o5, o6, o7, rank, patience,
    x1, x2, x3, x4, x5, x6, x7, words, part,
    OVERLAP: tl.constexpr, TIMED: tl.constexpr, WORLD: tl.constexpr, CHANNELS: tl.constexpr,
    FLAGS: tl.constexpr, BLOCK: tl.constexpr, PAIRED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    after_previous(OVERLAP)
    kind: tl.constexpr = x.dtype.element_ty
    channel = tl.program_id(0)
    grid = tl.num_programs(0)
    flags = mine + FLAGS + channel
    turn = tl.load(turns + CHANNELS + channel)
    bad = _meet(flags, turn + 1, o1, o2, o3, o4, o5, o6, o7, verdict, patience, TIMED, WORLD,
                CHANNELS)  # fmt: skip
    for start in range(channel * BLOCK, part, grid * BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = rank * part + i
        live = (i < part) & (at < words)
        own = wire(x, at, live, PAIRED, ALIGNED)
        a = first(own, kind, PAIRED)
        b = second(own, kind, PAIRED)
        for r in tl.static_range(WORLD):
            far = _far((r - rank + WORLD) % WORLD, x1, x2, x3, x4, x5, x6, x7)
            theirs = wire(x + far, at, live, PAIRED, ALIGNED)
            if r == 0:
                a = first(theirs, kind, PAIRED)
                b = second(theirs, kind, PAIRED)
            else:
                a += first(theirs, kind, PAIRED)
                b += second(theirs, kind, PAIRED)
        total = rounded(tl.where(bad != 0, float("nan"), a), tl.where(bad != 0, float("nan"), b),
                        kind, PAIRED)  # fmt: skip
        for step in tl.static_range(WORLD):
            far = _far(step, x1, x2, x3, x4, x5, x6, x7)
            put(x + far, at, total, live, PAIRED, ALIGNED)
    _meet(flags, turn + 2, o1, o2, o3, o4, o5, o6, o7, verdict, patience, TIMED, WORLD, CHANNELS)
    tl.store(turns + CHANNELS + channel, turn + 2)


IN_PLACE: Final = Kernel(
    _in_place, settle=settle, x="*T", **CHANNEL, **{f"x{name[1:]}": "i64" for name in FAR},
    words="i32", part="i32",
)  # fmt: skip
