"""Device functions of silu and gelu, alone and as the gate of a row, and their constants.

Rows: a program takes ``BLOCK`` columns of ``ROWS`` rows. Without rows: it takes ``BLOCK`` elements
of what lies in memory without gaps. Both run through float32 and round once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, Final

import triton
import triton.language as tl

from trivet.kernels.triton import Kernel
from trivet_triton.constants import Constants, lanes_of
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.rows import VECTOR


@triton.jit
def activated(f: tl.tensor, dtype: tl.constexpr, ACT: tl.constexpr) -> Any:
    """The activation of float32 that is to be rounded to ``dtype``.

    ``exp2`` is one instruction where ``exp`` takes five. Minus infinity gives NaN, as in the
    reference: an infinity times zero.
    """
    if ACT == "silu":
        made = _over(f, 1.0 + _exp_of_minus(f, dtype), dtype)
    elif ACT == "tanh":  # f / 2 * (1 + tanh(u)) is f * sigmoid(2 * u), which keeps the tail
        power = f * (-2.302208198144325 - 0.10294323970752043 * f * f)
        made = _over(f, 1.0 + tl.exp2(power), dtype)
    elif dtype == tl.float32:
        made = 0.5 * f * (1.0 + tl.erf(f * 0.7071067811865476))
    else:
        made = _gelu_narrow(f)
    return made


@triton.jit
def _exp_of_minus(f: tl.tensor, dtype: tl.constexpr) -> Any:
    """``exp(-f)``; for float32 with what the product with log2 e loses put back.

    That loss grows with the exponent: at 28 it would be ten times the rounding of the result.
    """
    power = f * -1.4426950408889634
    made = tl.exp2(power)
    if dtype == tl.float32:
        lost = tl.fma(f, -1.4426950408889634, -power) + f * -1.9259629911266175e-8
        finite = (made < float("inf")) & (power > -150.0)
        made = tl.where(finite, tl.fma(made * 0.6931471805599453, lost, made), made)
    return made


@triton.jit
def _over(f: tl.tensor, one_or_more: tl.tensor, dtype: tl.constexpr) -> Any:
    """The quotient; for 16 bits by the square of ``rsqrt``, two instructions in place of seven.

    Near 2 that square is too small by 3e-8 of itself every time, which float32 would show.
    """
    if dtype == tl.float32:
        made = f / one_or_more
    else:
        r = tl.rsqrt(one_or_more)
        made = f * r * r
    return made


@triton.jit
def _gelu_narrow(f: tl.tensor) -> Any:
    """GELU to 4e-5 of itself, tail included, for results of 16 bits; half of what erf takes.

    The normal distribution function at ``-t`` is ``exp(-t * t / 2)`` times a function of ``t``
    that is nearly a polynomial of ``u = 1 / (1 + 0.38 * t)``; the coefficients are a fit that
    minimises the largest relative error for ``t`` up to 14.
    """
    r = tl.rsqrt(1.0 + 0.38 * tl.abs(f))
    u = r * r
    p = 0.09198328281674678 + u * (0.18887182184919607 - 0.08992621880649664 * u)
    p = u * (0.1512252556959161 + u * (0.1578283671295827 + u * p))
    p *= tl.exp2(f * f * -0.7213475204444817)
    return f * tl.where(f < 0.0, p, 1.0 - p)


@triton.jit
def _rows(
    x: tl.tensor,
    y: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    ACT: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STREAM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Activates rows; ``GATED`` multiplies with the second half of a row of ``2 * WIDTH``."""
    after_previous(OVERLAP)
    POLICY: tl.constexpr = "evict_first" if STREAM else ""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    row = program // BLOCKS * ROWS + tl.arange(0, ROWS)[:, None]
    col = program % BLOCKS * BLOCK + tl.arange(0, BLOCK)[None, :]
    x += row.to(tl.int64) * x_stride + col
    y += row.to(tl.int64) * y_stride + col
    inside = col < WIDTH if ROWS == 1 else (row < rows) & (col < WIDTH)
    f = tl.load(x, mask=inside, other=0.0, eviction_policy=POLICY)
    if GATED:
        value = tl.load(x + WIDTH, mask=inside, other=0.0, eviction_policy=POLICY)
        r = activated(f.to(tl.float32), y.dtype.element_ty, ACT) * value.to(tl.float32)
    else:
        r = activated(f.to(tl.float32), y.dtype.element_ty, ACT)
    tl.store(y, r.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _flat(
    x: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    STREAM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Activates ``count`` elements that lie one after the other."""
    after_previous(OVERLAP)
    POLICY: tl.constexpr = "evict_first" if STREAM else ""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    col = tl.arange(0, BLOCK)
    x, y = x + start, y + start
    if start + BLOCK <= count:
        f = tl.load(x + col, eviction_policy=POLICY).to(tl.float32)
        r = activated(f, y.dtype.element_ty, ACT)
        tl.store(y + col, r.to(y.dtype.element_ty))
    else:
        inside = col < count - start
        f = tl.load(x + col, mask=inside, other=0.0).to(tl.float32)
        r = activated(f, y.dtype.element_ty, ACT)
        tl.store(y + col, r.to(y.dtype.element_ty), mask=inside)


ROWS: Final = Kernel(
    _rows, settle=overlap, x="*T", y="*T", x_stride="i64", y_stride="i64", rows="i32"
)
FLAT: Final = Kernel(_flat, settle=overlap, x="*T", y="*T", count="i64")


def config(
    width: int, warps: int, vectors: int, *, stream: bool = False, lanes: int = 32
) -> dict[str, Any]:
    """Columns of one row, or several rows where these are short.

    ``warps`` counts 32 threads; one of the device has ``lanes``, and is the least.
    """
    threads = max(32 * warps, lanes)
    elements = threads * VECTOR * vectors
    block = min(triton.next_power_of_2(width), elements)
    return {
        "ROWS": elements // block, "BLOCK": block, "STREAM": stream,
        "num_warps": threads // lanes, "num_stages": 1,
    }  # fmt: skip


def _waste(width: int, made: Mapping[str, Any]) -> int:
    """Lanes without a column, in a row."""
    return -width % int(made["BLOCK"])


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, Any]], ...]:
    """Narrow programs where there are few, so that they reach more processors; then wider ones."""
    width, lanes = int(key["width"]), lanes_of(key)

    def least(*among: int) -> dict[str, Any]:
        return min((config(width, w, 1, lanes=lanes) for w in among), key=partial(_waste, width))

    few, many = least(2, 1, 4), least(4, 8, 2)
    return (64, few), (inf, many)


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    """What is worth measuring for a number of rows."""
    width, lanes = int(key["width"]), lanes_of(key)
    for warps in (1, 2, 4, 8):
        for vectors in (1, 2) if rows >= 32 else (1,):
            made = config(width, warps, vectors, lanes=lanes)
            if _waste(width, made) * 2 > width and made["ROWS"] == 1:
                continue
            yield made
            if rows >= 512 and warps >= 4:
                yield made | {"STREAM": True}


def default_flat(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, Any]], ...]:
    """By elements: small programs until all processors are busy."""
    lanes = lanes_of(key)
    return (2**18, config(2**20, 1, 1, lanes=lanes)), (inf, config(2**20, 4, 1, lanes=lanes))


def space_flat(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    """As ``space``, for ``rows`` elements."""
    lanes = lanes_of(key)
    for warps in (1, 2, 4, 8):
        for vectors in (1, 2):
            yield config(2**20, warps, vectors, lanes=lanes)
            if rows >= 2**22 and warps >= 4:
                yield config(2**20, warps, vectors, stream=True, lanes=lanes)


TUNED: Final = Constants("activation_rows", space=space, default=default, wide=True)
TUNED_FLAT: Final = Constants("activation_flat", space=space_flat, default=default_flat, wide=True)
