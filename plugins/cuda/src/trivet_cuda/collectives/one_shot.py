"""All-reduce in one step: every rank sends all it has to all, and each sums by itself.

For two ranks it moves no more than any other way and takes one trip over the link. ``two_shot``
moves less for more ranks and takes two.
"""

# ruff: noqa: ANN001, ANN201, ANN202  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from trivet.kernels.triton import Kernel
from trivet_cuda.collectives.words import (
    CHANNEL,
    after_previous,
    emptied,
    first,
    push,
    put,
    received,
    rounded,
    second,
    settle,
    wire,
)


@triton.jit
def in_order(
    own, at, live, rank, verdict, patience, KIND: tl.constexpr, TIMED: tl.constexpr,
    WORLD: tl.constexpr, STRIDE: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """The sum of this rank's words and those that come in, in order of rank, in float32."""
    a = first(own, KIND, PAIRED)
    b = second(own, KIND, PAIRED)
    if WORLD == 2:  # a sum of two is the same in either order
        words, bad = received(at, live, 1, verdict, patience, TIMED, False)
        a += first(words, KIND, PAIRED)
        b += second(words, KIND, PAIRED)
    else:
        bad = rank * 0
        for r in tl.static_range(WORLD):
            missing = rank * 0
            words = own
            if r != rank:
                behind = (r - rank + WORLD) % WORLD
                words, missing = received(
                    at + (behind - 1) * STRIDE, live, behind, verdict, patience, TIMED, False
                )
            bad = bad | missing
            if r == 0:
                a = first(words, KIND, PAIRED)
                b = second(words, KIND, PAIRED)
            else:
                a += first(words, KIND, PAIRED)
                b += second(words, KIND, PAIRED)
    a = tl.where(bad != 0, float("nan"), a)
    b = tl.where(bad != 0, float("nan"), b)
    return a, b


@triton.jit
def _one_shot(
    x, out, mine, turns, verdict, o1, o2, o3, o4, o5, o6, o7, rank, patience, words,
    OVERLAP: tl.constexpr, TIMED: tl.constexpr, WORLD: tl.constexpr, CHANNELS: tl.constexpr,
    SLOT: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr, PAIRED: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    after_previous(OVERLAP)
    kind: tl.constexpr = x.dtype.element_ty
    stride: tl.constexpr = CHANNELS * SLOT
    channel = tl.program_id(0)
    grid = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    turn = tl.load(turns + channel)
    slots = mine + (turn & 1) * ((WORLD - 1) * stride) + channel * SLOT + lane
    tiles = tl.cdiv(words - channel * BLOCK, grid * BLOCK)
    if SINGLE:
        at = channel * BLOCK + lane
        live = at < words
        own = wire(x, at, live, PAIRED, ALIGNED)
        push(slots, own, live, o1, o2, o3, o4, o5, o6, o7, WORLD, stride)
        a, b = in_order(own, slots, live, rank, verdict, patience, kind, TIMED, WORLD, stride,
                        PAIRED)  # fmt: skip
        put(out, at, rounded(a, b, kind, PAIRED), live, PAIRED, ALIGNED)
        emptied(slots, live, -1, WORLD, stride)
    else:
        for tile in range(tiles):
            at = (tile * grid + channel) * BLOCK + lane
            live = at < words
            own = wire(x, at, live, PAIRED, ALIGNED)
            push(slots + tile * BLOCK, own, live, o1, o2, o3, o4, o5, o6, o7, WORLD, stride)
        for tile in range(tiles):
            at = (tile * grid + channel) * BLOCK + lane
            live = at < words
            own = wire(x, at, live, PAIRED, ALIGNED)
            a, b = in_order(own, slots + tile * BLOCK, live, rank, verdict, patience, kind, TIMED,
                            WORLD, stride, PAIRED)  # fmt: skip
            put(out, at, rounded(a, b, kind, PAIRED), live, PAIRED, ALIGNED)
            emptied(slots + tile * BLOCK, live, -1, WORLD, stride)
    tl.store(turns + channel, turn + 1)


ONE_SHOT: Final = Kernel(_one_shot, settle=settle, x="*T", out="*T", **CHANNEL, words="i32")
