"""All-gather of small messages, whatever their bits: each word travels with one that says so.

A packet of 64 bits has the data in its lower half and 0 in the upper one, which is all ones while
the memory waits. Hardware moves 64 bits at once.
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
    after_previous,
    emptied,
    push,
    received,
    settle,
)


@triton.jit
def _read(x, at, live, WIDE: tl.constexpr, ALIGNED: tl.constexpr):
    """Four bytes at a time, or one, as numbers of 64 bits."""
    if not WIDE:
        found = tl.load(x + at, mask=live, other=0).to(tl.int64)
    elif ALIGNED:
        whole = tl.load(x.to(tl.pointer_type(tl.int32), bitcast=True) + at, mask=live, other=0)
        found = whole.to(tl.int64) & 0xFFFFFFFF
    else:
        found = tl.load(x + 4 * at, mask=live, other=0).to(tl.int64)
        for byte in tl.static_range(1, 4):
            found |= tl.load(x + 4 * at + byte, mask=live, other=0).to(tl.int64) << (8 * byte)
    return found


@triton.jit
def _write(out, at, packets, live, WIDE: tl.constexpr, ALIGNED: tl.constexpr):
    if not WIDE:
        tl.store(out + at, packets.to(tl.uint8), mask=live)
    elif ALIGNED:
        to = out.to(tl.pointer_type(tl.int32), bitcast=True) + at
        tl.store(to, packets.to(tl.int32), mask=live)
    else:
        for byte in tl.static_range(4):
            tl.store(out + 4 * at + byte, (packets >> (8 * byte)).to(tl.uint8), mask=live)


@triton.jit
def _gather(
    x, out, mine, turns, verdict, o1, o2, o3, o4, o5, o6, o7, rank, patience, words,
    OVERLAP: tl.constexpr, TIMED: tl.constexpr, WORLD: tl.constexpr, CHANNELS: tl.constexpr,
    SLOT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    after_previous(OVERLAP)
    half: tl.constexpr = SLOT // 2  # packets in the memory of a channel
    stride: tl.constexpr = CHANNELS * half
    channel = tl.program_id(0)
    grid = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    turn = tl.load(turns + channel)
    packets = mine.to(tl.pointer_type(tl.int64), bitcast=True)
    slots = packets + (turn & 1) * ((WORLD - 1) * stride) + channel * half + lane
    tiles = tl.cdiv(words - channel * BLOCK, grid * BLOCK)
    for tile in range(tiles):
        at = (tile * grid + channel) * BLOCK + lane
        live = at < words
        own = _read(x, at, live, WIDE, ALIGNED)
        push(slots + tile * BLOCK, own, live, o1 // 2, o2 // 2, o3 // 2, o4 // 2, o5 // 2, o6 // 2,
             o7 // 2, WORLD, stride)  # fmt: skip
        _write(out, rank * words + at, own, live, WIDE, ALIGNED)
    for tile in range(tiles):
        at = (tile * grid + channel) * BLOCK + lane
        live = at < words
        for behind in tl.static_range(1, WORLD):
            theirs, _ = received(
                slots + tile * BLOCK + (behind - 1) * stride, live, behind, verdict, patience,
                TIMED, True,
            )  # fmt: skip
            _write(out, (rank + behind) % WORLD * words + at, theirs, live, WIDE, ALIGNED)
        emptied(slots + tile * BLOCK, live, -1, WORLD, stride)
    tl.store(turns + channel, turn + 1)


GATHER: Final = Kernel(_gather, settle=settle, x="*u8", out="*u8", **CHANNEL, words="i32")
