"""Device functions of rms_norm and fused_add_rms_norm, and the choice of their constants.

A program takes ``ROWS`` rows, held in registers between the mean square and the scaling. Options:
``TWICE`` reads the row a second time instead, which rows too long for registers need;
``RESIDENT`` is a number of programs a multiprocessor that walk over all rows, keep the weight
and ask for the next row before they work on this one; ``STREAM`` marks ``x`` as read once;
``EARLY`` puts a barrier behind the loads of the weight, which the assembler would otherwise move
behind the first use of ``x``, so that a cold call would wait for memory twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final

import triton
import triton.language as tl

from trivet.kernels.triton import Kernel
from trivet_triton.constants import Constants
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.rows import VECTOR, load_row, pieces, store_piece

MOST_PIECES: Final = 8
"""A thread holds at most 64 elements of a row."""


@triton.jit
def square_mean(
    held: tl.tuple, ROWS: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr
) -> Any:
    """The mean square of the first ``COUNT`` elements of rows, ``[ROWS, 1]`` in float32."""
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(0, COUNT, BLOCK):
        f = held[i // BLOCK].to(tl.float32)
        if i + BLOCK > COUNT:
            f = tl.where(i + tl.arange(0, BLOCK)[None, :] < COUNT, f, 0.0)
        total += f * f
    return tl.sum(total, 1, keep_dims=True) * (1.0 / COUNT)


@triton.jit
def scaled(
    f: tl.tensor, w: tl.tensor, dtype: tl.constexpr, OFFSET: tl.constexpr, IN_FLOAT32: tl.constexpr
) -> Any:
    """A normalised piece times its weight, rounded where the operators declare it."""
    if IN_FLOAT32:
        r = f * (w.to(tl.float32) + OFFSET)
    else:
        if OFFSET != 0.0:
            w = (w.to(tl.float32) + OFFSET).to(w.dtype)
        r = f.to(dtype).to(tl.float32) * w.to(tl.float32)
    return r.to(dtype)


@triton.jit
def load_weight(
    weight: tl.tensor, row: tl.tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> Any:
    """The pieces of a weight; each of several rows gets its own, in the layout of the rows."""
    if ROWS > 1:
        weight += row * 0
    return load_row(weight, row * 0, 1, WIDTH, BLOCK, True, "evict_last")


@triton.jit
def _sum(held: tl.tuple, other: tl.tuple, WIDTH: tl.constexpr, BLOCK: tl.constexpr) -> Any:
    """Pieces of two rows added, rounded to their dtype."""
    found = ()  # it grows by sums of tuples, since Triton unpacks none
    for i in tl.static_range(0, WIDTH, BLOCK):
        s = held[i // BLOCK].to(tl.float32) + other[i // BLOCK].to(tl.float32)
        found = found + (s.to(held[0].dtype),)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def _read(
    x: tl.tensor,
    residual: tl.tensor,
    x_stride: tl.tensor,
    r_stride: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    FUSED: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
    STREAM: tl.constexpr,
) -> Any:
    """The pieces of rows that are to be normalised."""
    POLICY: tl.constexpr = "evict_first" if STREAM else ""
    at = row.to(tl.int64)
    held = load_row(x + at * x_stride, row, rows, HIDDEN, BLOCK, ALL, POLICY)
    if FUSED:
        other = load_row(residual + at * r_stride, row, rows, HIDDEN, BLOCK, ALL, POLICY)
        held = _sum(held, other, HIDDEN, BLOCK)
    return held


@triton.jit
def _write(
    held: tl.tuple,
    weights: tl.tuple,
    y: tl.tensor,
    total: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    FUSED: tl.constexpr,
    HIDDEN: tl.constexpr,
    VARIANCE: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
) -> None:
    """Normalises rows from registers; ``y`` and ``total`` point to their first elements."""
    if FUSED:
        for i in tl.static_range(0, HIDDEN, BLOCK):
            store_piece(total, row, rows, held[i // BLOCK], i, HIDDEN, BLOCK, ALL)
    scale = tl.rsqrt(square_mean(held, ROWS, BLOCK, VARIANCE) + EPS)
    for i in tl.static_range(0, HIDDEN, BLOCK):
        f = held[i // BLOCK].to(tl.float32) * scale
        r = scaled(f, weights[i // BLOCK], y.dtype.element_ty, OFFSET, IN_FLOAT32)
        store_piece(y, row, rows, r, i, HIDDEN, BLOCK, ALL)


@triton.jit
def _piece(
    x: tl.tensor, residual: tl.tensor, col: tl.tensor, FUSED: tl.constexpr, HIDDEN: tl.constexpr
) -> Any:
    """One piece of one row, read where it is needed."""
    f = tl.load(x + col, mask=col < HIDDEN, other=0.0)
    if FUSED:
        s = f.to(tl.float32) + tl.load(residual + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        f = s.to(f.dtype)
    return f


@triton.jit
def _twice(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    FUSED: tl.constexpr,
    HIDDEN: tl.constexpr,
    VARIANCE: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row, read for its mean square and read again to be scaled."""
    squares = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, VARIANCE, BLOCK, loop_unroll_factor=4):
        col = i + tl.arange(0, BLOCK)
        f = _piece(x, residual, col, FUSED, HIDDEN).to(tl.float32)
        f = tl.where(col < VARIANCE, f, 0.0)
        squares += f * f
    scale = tl.rsqrt(tl.sum(squares, 0) * (1.0 / VARIANCE) + EPS)
    for i in tl.range(0, HIDDEN, BLOCK, loop_unroll_factor=4):
        col = i + tl.arange(0, BLOCK)
        w = tl.load(weight + col, mask=col < HIDDEN, other=0.0, eviction_policy="evict_last")
        s = _piece(x, residual, col, FUSED, HIDDEN)
        if FUSED:
            tl.store(total + col, s, mask=col < HIDDEN)
        f = s.to(tl.float32) * scale
        r = scaled(f, w, y.dtype.element_ty, OFFSET, IN_FLOAT32)
        tl.store(y + col, r, mask=col < HIDDEN)


@triton.jit
def _held(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    x_stride: tl.tensor,
    r_stride: tl.tensor,
    y_stride: tl.tensor,
    t_stride: tl.tensor,
    rows: tl.tensor,
    FUSED: tl.constexpr,
    HIDDEN: tl.constexpr,
    VARIANCE: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    S: tl.constexpr,
    RESIDENT: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Rows that stay in registers: some for each program, or all of them in turn."""
    ALL: tl.constexpr = ROWS == 1 and RESIDENT == 0
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    weights = load_weight(weight, row, ROWS, HIDDEN, BLOCK)
    if EARLY:
        tl.debug_barrier()
    held = _read(x, residual, x_stride, r_stride, row, rows, FUSED, HIDDEN, BLOCK, ALL, S)
    if RESIDENT == 0:
        at = row.to(tl.int64)
        _write(
            held, weights, y + at * y_stride, total + at * t_stride, row, rows,
            FUSED, HIDDEN, VARIANCE, EPS, OFFSET, IN_FLOAT32, ROWS, BLOCK, ALL,
        )  # fmt: skip
    else:
        step = tl.num_programs(0) * ROWS
        for start in range(tl.program_id(0) * ROWS, rows, step):
            row = start + tl.arange(0, ROWS)[:, None]
            at, then = row.to(tl.int64), row + step
            ahead = _read(x, residual, x_stride, r_stride, then, rows, FUSED, HIDDEN, BLOCK, ALL, S)
            _write(
                held, weights, y + at * y_stride, total + at * t_stride, row, rows,
                FUSED, HIDDEN, VARIANCE, EPS, OFFSET, IN_FLOAT32, ROWS, BLOCK, ALL,
            )  # fmt: skip
            held = ahead


@triton.jit
def _rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    VARIANCE: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TWICE: tl.constexpr,
    STREAM: tl.constexpr,
    RESIDENT: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    if TWICE:
        row = tl.program_id(0).to(tl.int64)
        at, to = x + row * x_stride, y + row * y_stride
        _twice(
            at, at, weight, to, to,
            False, HIDDEN, VARIANCE, EPS, OFFSET, IN_FLOAT32, BLOCK,
        )  # fmt: skip
    else:
        _held(
            x, x, weight, y, y, x_stride, x_stride, y_stride, y_stride, rows,
            False, HIDDEN, VARIANCE, EPS, OFFSET, IN_FLOAT32, ROWS, BLOCK, STREAM, RESIDENT,
            EARLY,
        )  # fmt: skip


@triton.jit
def _fused_add_rms_norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    x_stride: tl.tensor,
    r_stride: tl.tensor,
    y_stride: tl.tensor,
    t_stride: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    VARIANCE: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TWICE: tl.constexpr,
    STREAM: tl.constexpr,
    RESIDENT: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    if TWICE:
        row = tl.program_id(0).to(tl.int64)
        _twice(
            x + row * x_stride, residual + row * r_stride, weight,
            y + row * y_stride, total + row * t_stride,
            True, HIDDEN, VARIANCE, EPS, OFFSET, IN_FLOAT32, BLOCK,
        )  # fmt: skip
    else:
        _held(
            x, residual, weight, y, total, x_stride, r_stride, y_stride, t_stride, rows,
            True, HIDDEN, VARIANCE, EPS, OFFSET, IN_FLOAT32, ROWS, BLOCK, STREAM, RESIDENT,
            EARLY,
        )  # fmt: skip


RMS_NORM: Final = Kernel(
    _rms_norm,
    settle=overlap,
    x="*T",
    weight="*W",
    y="*T",
    x_stride="i64",
    y_stride="i64",
    rows="i32",
)
FUSED: Final = Kernel(
    _fused_add_rms_norm, settle=overlap,
    x="*T", residual="*T", weight="*W", y="*T", total="*T",
    x_stride="i64", r_stride="i64", y_stride="i64", t_stride="i64", rows="i32",
)  # fmt: skip


def config(hidden: int, warps: int, **more: int) -> dict[str, Any]:
    """One choice: a row a program where rows are long, several where they are short."""
    block, count = pieces(hidden, warps)
    rows = 1 if count > 1 else max(1, 32 * VECTOR * warps // block)
    made = {
        "ROWS": rows,
        "BLOCK": block,
        "TWICE": False,
        "STREAM": False,
        "RESIDENT": 0,
        "EARLY": True,
    }
    if count > MOST_PIECES:
        made |= {"TWICE": True, "ROWS": 1}
    return made | more | {"num_warps": warps, "num_stages": 1}


def fitting(hidden: int, among: Iterable[int], idle: float = 0.2) -> list[int]:
    """The numbers of warps, of these, that leave no more than a share of their lanes idle."""
    kept = []
    for warps in among:
        block, count = pieces(hidden, warps)
        if count <= MOST_PIECES and count * block - hidden <= idle * count * block:
            kept.append(warps)
    return kept or [max(among) if hidden > 8192 else min(among)]


def fixed(hidden: int, vectors: int) -> dict[str, Any]:
    """One choice for every number of rows: about so many vectors a thread."""
    wanted = min(max(hidden // (vectors * 32 * VECTOR), 4), 16)
    among = fitting(hidden, (4, 8, 16, 32))
    return config(hidden, min(among, key=lambda warps: abs(warps - wanted)))


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, Any]], ...]:
    """Few rows leave processors idle, so that each is spread over more threads."""
    hidden = int(key["hidden"])
    return (256, fixed(hidden, 2)), (inf, fixed(hidden, 4))


def default_fused(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, Any]], ...]:
    """Two tensors take twice the registers, and have as many reads in flight, at half the row."""
    return ((inf, fixed(int(key["hidden"]), 2)),)


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    """What is worth measuring for a number of rows."""
    hidden, many = int(key["hidden"]), rows >= 512
    among = [w for w in (2, 4, 8, 16, 32) if w == 2 or w * 32 * VECTOR < 2 * hidden]
    for warps in fitting(hidden, among, 0.2 if many else 0.4):
        one = config(hidden, warps)
        yield one
        if many and not one["TWICE"]:
            yield one | {"EARLY": False}
            yield one | {"STREAM": True}
            yield one | {"STREAM": True, "RESIDENT": max(1, 32 // warps)}
    if many:
        for warps in among[-2:]:
            yield config(hidden, warps, TWICE=True, ROWS=1)


TUNED: Final = Constants("rms_norm", space=space, default=default)
TUNED_FUSED: Final = Constants("fused_add_rms_norm", space=space, default=default_fused)
