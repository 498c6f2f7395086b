"""All-reduce in two steps: each rank sums its part of everybody's data and sends it to all.

Reduce-scatter is the first step alone.
"""

# ruff: noqa: ANN001, ANN202  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from trivet.kernels.triton import Kernel
from trivet_cuda.collectives.one_shot import in_order
from trivet_cuda.collectives.words import (
    CHANNEL,
    after_previous,
    emptied,
    push,
    put,
    received,
    rounded,
    settle,
    wire,
)


@triton.jit
def _send(
    x, to, i, part, words, at, STEP: tl.constexpr, WORLD: tl.constexpr, STRIDE: tl.constexpr,
    PAIRED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Sends the part of rank ``to``, which is ``STEP`` after this one, to it."""
    live = (i < part) & (to * part + i < words)
    own = wire(x, to * part + i, live, PAIRED, ALIGNED)
    tl.store(at + (WORLD - STEP - 1) * STRIDE, own, mask=live, cache_modifier=".wt")


@triton.jit
def _two_shot(
    x, out, mine, turns, verdict, o1, o2, o3, o4, o5, o6, o7, rank, patience, words, part,
    OVERLAP: tl.constexpr, TIMED: tl.constexpr, WORLD: tl.constexpr, CHANNELS: tl.constexpr,
    SLOT: tl.constexpr, BLOCK: tl.constexpr, GATHER: tl.constexpr, PAIRED: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    after_previous(OVERLAP)
    kind: tl.constexpr = x.dtype.element_ty
    stride: tl.constexpr = CHANNELS * SLOT
    second_step: tl.constexpr = SLOT // 2
    channel = tl.program_id(0)
    grid = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    turn = tl.load(turns + channel)
    slots = mine + (turn & 1) * ((WORLD - 1) * stride) + channel * SLOT + lane
    tiles = tl.cdiv(part - channel * BLOCK, grid * BLOCK)
    for tile in range(tiles):
        i = (tile * grid + channel) * BLOCK + lane
        at = slots + tile * BLOCK
        _send(x, (rank + 1) % WORLD, i, part, words, at + o1, 1, WORLD, stride, PAIRED, ALIGNED)
        if WORLD > 2:
            _send(x, (rank + 2) % WORLD, i, part, words, at + o2, 2, WORLD, stride, PAIRED, ALIGNED)
        if WORLD > 3:
            _send(x, (rank + 3) % WORLD, i, part, words, at + o3, 3, WORLD, stride, PAIRED, ALIGNED)
        if WORLD > 4:
            _send(x, (rank + 4) % WORLD, i, part, words, at + o4, 4, WORLD, stride, PAIRED, ALIGNED)
        if WORLD > 5:
            _send(x, (rank + 5) % WORLD, i, part, words, at + o5, 5, WORLD, stride, PAIRED, ALIGNED)
        if WORLD > 6:
            _send(x, (rank + 6) % WORLD, i, part, words, at + o6, 6, WORLD, stride, PAIRED, ALIGNED)
        if WORLD > 7:
            _send(x, (rank + 7) % WORLD, i, part, words, at + o7, 7, WORLD, stride, PAIRED, ALIGNED)
    for tile in range(tiles):
        i = (tile * grid + channel) * BLOCK + lane
        at = slots + tile * BLOCK
        live = (i < part) & (rank * part + i < words)
        own = wire(x, rank * part + i, live, PAIRED, ALIGNED)
        a, b = in_order(own, at, live, rank, verdict, patience, kind, TIMED, WORLD, stride, PAIRED)
        total = rounded(a, b, kind, PAIRED)
        if GATHER:
            push(at + second_step, total, live, o1, o2, o3, o4, o5, o6, o7, WORLD, stride)
            put(out, rank * part + i, total, live, PAIRED, ALIGNED)
        else:
            put(out, i, total, live, PAIRED, ALIGNED)
        emptied(at, live, -1, WORLD, stride)
    if GATHER:
        for tile in range(tiles):
            i = (tile * grid + channel) * BLOCK + lane
            for behind in tl.static_range(1, WORLD):
                at = slots + tile * BLOCK + second_step + (behind - 1) * stride
                to = (rank + behind) % WORLD * part + i
                live = (i < part) & (to < words)
                total, missing = received(at, live, behind, verdict, patience, TIMED, False)
                total = tl.where(missing != 0, 0x7FFF7FFF, total)
                put(out, to, total, live, PAIRED, ALIGNED)
                tl.store(at, -1, mask=live)
    tl.store(turns + channel, turn + 1)


TWO_SHOT: Final = Kernel(
    _two_shot, settle=settle, x="*T", out="*T", **CHANNEL, words="i32", part="i32"
)
