"""Pairs of features of some heads of a token: read, turned, written. Device functions alone."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def read_pairs(
    row: tl.tensor,
    head: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> Any:
    """Both features of every pair of some heads of a token, in float32."""
    start, there = row + head[:, None] * HEAD_DIM, head[:, None] < HEADS
    if INTERLEAVED:
        i = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
        both = tl.load(start + i, mask=there & (i < 2 * HALF), other=0.0)
        a, b = tl.split(tl.reshape(both, [BLOCK_HEADS, BLOCK_PAIRS, 2]))
    else:
        i = tl.arange(0, BLOCK_PAIRS)[None, :]
        a = tl.load(start + i, mask=there & (i < HALF), other=0.0)
        b = tl.load(start + HALF + i, mask=there & (i < HALF), other=0.0)
    return a.to(tl.float32), b.to(tl.float32)


@triton.jit
def read_angles(
    cos_row: tl.tensor, sin_row: tl.tensor, HALF: tl.constexpr, BLOCK_PAIRS: tl.constexpr
) -> Any:
    """Cosines and sines of a token, each ``[1, pairs]``.

    They are one load, because the threads exchange what they read: the load of sines would wait
    for the exchange of cosines. It stands after the loads of features for the same reason.
    """
    i = tl.arange(0, 2 * BLOCK_PAIRS)
    row = tl.where(i % 2 == 0, cos_row, sin_row)
    both = tl.load(row + i // 2, mask=i < 2 * HALF, other=0.0)
    c, s = tl.split(tl.reshape(both, [BLOCK_PAIRS, 2]))
    return c[None, :], s[None, :]


@triton.jit
def turned(a: tl.tensor, b: tl.tensor, c: tl.tensor, s: tl.tensor, element: tl.constexpr) -> Any:
    """Turned pairs. The sums are written as what they compile to, so that all kernels agree."""
    return tl.fma(a, c, -b * s).to(element), tl.fma(b, c, a * s).to(element)


@triton.jit
def write_pairs(
    row: tl.tensor,
    head: tl.tensor,
    there: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    """Stores pairs that already have the dtype of the row; ``there`` is ``[heads, 1]``."""
    start = row + head[:, None] * HEAD_DIM
    if INTERLEAVED:
        i = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
        both = tl.reshape(tl.join(a, b), [BLOCK_HEADS, 2 * BLOCK_PAIRS])
        tl.store(start + i, both, mask=there & (i < 2 * HALF))
    else:
        i = tl.arange(0, BLOCK_PAIRS)[None, :]
        tl.store(start + i, a, mask=there & (i < HALF))
        tl.store(start + HALF + i, b, mask=there & (i < HALF))


@triton.jit
def copy_features(
    source: tl.tensor,
    target: tl.tensor,
    head: tl.tensor,
    there: tl.tensor,
    FIRST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copies the features of some heads from ``FIRST`` on; ``there`` is ``[heads, 1]``."""
    i = FIRST + tl.arange(0, BLOCK)[None, :]
    at, there = head[:, None] * HEAD_DIM + i, there & (i < HEAD_DIM)
    value = tl.load(source + at, mask=there, other=0.0)
    tl.store(target + at, value.to(target.dtype.element_ty), mask=there)
