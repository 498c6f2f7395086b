"""All-reduce, the addition of a residual and RMSNorm behind it, in one kernel.

A program takes whole rows, as ``one_shot`` takes words: every rank sums and normalises all rows, so
that for two ranks no more goes over the link than for the sum alone.
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
    first,
    push,
    put,
    rounded,
    second,
    settle,
    wire,
)


@triton.jit
def _weights(
    weight, lane, live, KIND: tl.constexpr, PAIRED: tl.constexpr, ALIGNED: tl.constexpr
):  # fmt: skip
    """The weights of the numbers in each word, in float32; they may be of a wider dtype."""
    if not PAIRED:
        c = tl.load(weight + lane, mask=live, other=0.0).to(tl.float32)
        d = c
    elif weight.dtype.element_ty == KIND:
        words = wire(weight, lane, live, PAIRED, ALIGNED)
        c = first(words, KIND, PAIRED)
        d = second(words, KIND, PAIRED)
    else:
        c = tl.load(weight + 2 * lane, mask=live, other=0.0).to(tl.float32)
        d = tl.load(weight + 2 * lane + 1, mask=live, other=0.0).to(tl.float32)
    return c, d


@triton.jit
def _row(
    x, residual, weight, out, row, slots, lane, rank, verdict, patience, eps, hidden,
    KIND: tl.constexpr, TIMED: tl.constexpr, WORLD: tl.constexpr,
    STRIDE: tl.constexpr, WORDS: tl.constexpr, PAIRED: tl.constexpr, ALIGNED: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Sums a row, adds to it, normalises it and writes both."""
    live = lane < WORDS
    at = row * WORDS + lane
    own = wire(x, at, live, PAIRED, ALIGNED)
    before = own
    if ADD:
        before = wire(residual, at, live, PAIRED, ALIGNED)  # these come while the others' words do
    c, d = _weights(weight, lane, live, KIND, PAIRED, ALIGNED)
    a, b = in_order(own, slots, live, rank, verdict, patience, KIND, TIMED, WORLD, STRIDE, PAIRED)
    total = rounded(a, b, KIND, PAIRED)  # as two operators would round it in between
    if ADD:
        a = first(total, KIND, PAIRED) + first(before, KIND, PAIRED)
        b = second(total, KIND, PAIRED) + second(before, KIND, PAIRED)
        total = rounded(a, b, KIND, PAIRED)
    put(residual, at, total, live, PAIRED, ALIGNED)
    a = tl.where(live, first(total, KIND, PAIRED), 0.0)
    b = tl.where(live, second(total, KIND, PAIRED), 0.0)
    scale = tl.rsqrt(tl.sum(a * a + b * b, 0) / hidden + eps)
    a = (a * scale).to(KIND).to(tl.float32) * c
    b = (b * scale).to(KIND).to(tl.float32) * d
    put(out, at, rounded(a, b, KIND, PAIRED), live, PAIRED, ALIGNED)
    emptied(slots, live, -1, WORLD, STRIDE)


@triton.jit
def _fused_norm(
    x, residual, weight, out, mine, turns, verdict, o1, o2, o3, o4, o5, o6, o7, rank, patience,
    rows, hidden, eps,
    OVERLAP: tl.constexpr, TIMED: tl.constexpr, WORLD: tl.constexpr, CHANNELS: tl.constexpr,
    SLOT: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr, PAIRED: tl.constexpr,
    ALIGNED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    after_previous(OVERLAP)
    kind: tl.constexpr = x.dtype.element_ty
    stride: tl.constexpr = CHANNELS * SLOT
    room: tl.constexpr = (WORDS + 3) // 4 * 4
    channel = tl.program_id(0)
    grid = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    turn = tl.load(turns + channel)
    slots = mine + (turn & 1) * ((WORLD - 1) * stride) + channel * SLOT + lane
    count = tl.cdiv(rows - channel, grid)
    for mine_th in range(count):
        at = (channel + mine_th * grid) * WORDS + lane
        own = wire(x, at, lane < WORDS, PAIRED, ALIGNED)
        push(slots + mine_th * room, own, lane < WORDS, o1, o2, o3, o4, o5, o6, o7, WORLD, stride)
    for mine_th in range(count):
        _row(
            x, residual, weight, out, channel + mine_th * grid, slots + mine_th * room, lane, rank,
            verdict, patience, eps, hidden, kind, TIMED, WORLD, stride, WORDS, PAIRED,
            ALIGNED, ADD,
        )  # fmt: skip
    tl.store(turns + channel, turn + 1)


FUSED_NORM: Final = Kernel(
    _fused_norm, settle=settle, x="*T", residual="*T", weight="*W", out="*T", **CHANNEL,
    rows="i32", hidden="fp32", eps="fp32",
)  # fmt: skip
