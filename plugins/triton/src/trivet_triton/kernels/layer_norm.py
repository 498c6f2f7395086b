"""layer_norm: mean and variance from registers, one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from math import inf
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor, empty_like

from trivet.contracts import (
    Term,
    between,
    contiguous,
    divisible,
    dtype,
    implements,
    offset_aligned,
    rows,
)
from trivet.kernels.triton import Kernel, Variant
from trivet.kernels.triton.tuned import Key
from trivet_triton.constants import Constants
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels.norm_kernels import config, fitting, load_weight
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import FLOATS, named, row_stride
from trivet_triton.kernels.rows import VECTOR, load_row, promises, store_piece
from trivet_triton.kernels.sites import Launches, Site, at_bind

_DOMAIN: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    dtype("bias", *FLOATS),
    rows("x"),
    contiguous("weight"),
    contiguous("bias"),
    between("hidden", 1, None),
]
_ALIGNED: Final[list[Term]] = [
    *_DOMAIN,
    divisible("hidden", VECTOR),
    rows("x", VECTOR),
    offset_aligned("x", 16),
    offset_aligned("weight", 16),
    offset_aligned("bias", 16),
]
"""Where one compiled program serves every row, in one order of additions."""


@triton.jit
def _sums(
    held: tl.tuple,
    mean: tl.tensor,
    POWER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
) -> Any:
    """The mean over rows of what is left without ``mean``, or of its square: ``[ROWS, 1]``."""
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(0, HIDDEN, BLOCK):
        f = held[i // BLOCK].to(tl.float32) - mean
        if i + BLOCK > HIDDEN:
            f = tl.where(i + tl.arange(0, BLOCK)[None, :] < HIDDEN, f, 0.0)
        total += f if POWER == 1 else f * f
    return tl.sum(total, 1, keep_dims=True) * (1.0 / HIDDEN)


@triton.jit
def _held(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STREAM: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Rows that stay in registers; ``x`` and ``y`` point to their first elements."""
    POLICY: tl.constexpr = "evict_first" if STREAM else ""
    ALL: tl.constexpr = ROWS == 1
    weights = ()
    if WEIGHT:
        weights = load_weight(weight, row, ROWS, HIDDEN, BLOCK)
    biases = weights
    if BIAS:
        biases = load_weight(bias, row, ROWS, HIDDEN, BLOCK)
    if EARLY:  # else the assembler moves these loads behind the first use of x
        tl.debug_barrier()
    held = load_row(x, row, rows, HIDDEN, BLOCK, ALL, POLICY)
    mean = _sums(held, 0.0, 1, ROWS, BLOCK, HIDDEN)
    mean += _sums(held, mean, 1, ROWS, BLOCK, HIDDEN)  # what the first sum rounded away
    scale = tl.rsqrt(_sums(held, mean, 2, ROWS, BLOCK, HIDDEN) + EPS)
    for i in tl.static_range(0, HIDDEN, BLOCK):
        f = (held[i // BLOCK].to(tl.float32) - mean) * scale
        if WEIGHT:
            f = f * weights[i // BLOCK].to(tl.float32)
        if BIAS:
            f = f + biases[i // BLOCK].to(tl.float32)
        store_piece(y, row, rows, f.to(y.dtype.element_ty), i, HIDDEN, BLOCK, ALL)


@triton.jit
def _again(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    HIDDEN: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row too long for registers, read three times."""
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, HIDDEN, BLOCK, loop_unroll_factor=4):
        col = i + tl.arange(0, BLOCK)
        total += tl.load(x + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) * (1.0 / HIDDEN)
    total, rest = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, HIDDEN, BLOCK, loop_unroll_factor=4):
        col = i + tl.arange(0, BLOCK)
        f = tl.load(x + col, mask=col < HIDDEN, other=0.0).to(tl.float32) - mean
        f = tl.where(col < HIDDEN, f, 0.0)
        rest += f
        total += f * f
    lost = tl.sum(rest, 0) * (1.0 / HIDDEN)  # what the first sum rounded away
    mean += lost
    scale = tl.rsqrt(tl.sum(total, 0) * (1.0 / HIDDEN) - lost * lost + EPS)
    for i in tl.range(0, HIDDEN, BLOCK, loop_unroll_factor=4):
        col = i + tl.arange(0, BLOCK)
        f = tl.load(x + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        f = (f - mean) * scale
        if WEIGHT:
            f = f * tl.load(weight + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        if BIAS:
            f = f + tl.load(bias + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        tl.store(y + col, f.to(y.dtype.element_ty), mask=col < HIDDEN)


@triton.jit
def _layer_norm(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TWICE: tl.constexpr,
    STREAM: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    if TWICE:
        one = tl.program_id(0).to(tl.int64)
        x, y = x + one * x_stride, y + one * y_stride
        _again(x, weight, bias, y, HIDDEN, EPS, WEIGHT, BIAS, BLOCK)
    else:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
        at = row.to(tl.int64)
        x, y = x + at * x_stride, y + at * y_stride
        _held(
            x, weight, bias, y, row, rows,
            HIDDEN, EPS, WEIGHT, BIAS, ROWS, BLOCK, STREAM, EARLY,
        )  # fmt: skip


KERNEL: Final = Kernel(
    _layer_norm, settle=overlap,
    x="*T", weight="*W", bias="*W", y="*T", x_stride="i64", y_stride="i64", rows="i32",
)  # fmt: skip


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    """What is worth measuring, whatever the number of rows: one config has to serve all."""
    del rows
    hidden = int(key["hidden"])
    for warps in fitting(hidden, (2, 4, 8, 16) if hidden <= 8192 else (8, 16, 32)):
        yield (one := config(hidden, warps))
        yield one | {"EARLY": False}
        yield one | {"STREAM": True}


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, Any]], ...]:
    """About two vectors a thread, since weight and bias take registers as well as the row."""
    hidden = int(key["hidden"])
    wanted = min(max(hidden // (2 * 32 * VECTOR), 4), 16)
    among = fitting(hidden, (4, 8, 16, 32))
    return ((inf, config(hidden, min(among, key=lambda warps: abs(warps - wanted)))),)


TUNED: Final = Constants("layer_norm", space=space, default=default)


def variant(
    x: torch.dtype, weight: torch.dtype, aligned: bool, given: Mapping[str, Any]
) -> Variant:
    """The kernel with its constants and options, told apart by their case."""
    return KERNEL.variant(
        {"T": x, "W": weight},
        {n: v for n, v in given.items() if n in KERNEL.constants},
        divisible=promises("x weight bias y", "x_stride y_stride", aligned=aligned),
        **{n: v for n, v in given.items() if not n.isupper()},
    )


@cache
def choose(
    x: torch.dtype, weight: torch.dtype, hidden: int, aligned: bool, index: int,
    eps: float, with_weight: bool, with_bias: bool,
) -> tuple[int, Callable[..., None]]:  # fmt: skip
    """Rows a program and the launch: one for any number of rows, so that none depends on it."""
    key: Key = {"dtype": named(x), "weight": named(weight), "hidden": hidden}
    _, config = TUNED.buckets(arch_at(index), key)[-1]
    fixed = {"HIDDEN": hidden, "EPS": float(eps), "WEIGHT": with_weight, "BIAS": with_bias}
    made = variant(x, weight, aligned, {**fixed, **config}).on(device_at(index))
    return int(config["ROWS"]), made


@cache
def _runner(
    x_dtype: torch.dtype, weight_dtype: torch.dtype, hidden: int, eps: float,
    with_weight: bool, with_bias: bool, dense: bool | None = None,
) -> Callable[..., Tensor]:  # fmt: skip
    """layer_norm into ``y``, which may be ``x``, or into a fresh tensor.

    ``dense`` says whether ``x`` is known to be contiguous; None where there was no bind.
    """
    given = (eps, with_weight, with_bias)
    fast = Launches(lambda i: choose(x_dtype, weight_dtype, hidden, True, i, *given))
    slow = Launches(lambda i: choose(x_dtype, weight_dtype, hidden, False, i, *given))
    if dense is not None:
        (slow if hidden % VECTOR else fast).at_home()

    def run(x: Tensor, w: Tensor, b: Tensor, y: Tensor | None = None) -> Tensor:
        x_stride = hidden if dense or x.is_contiguous() else row_stride(x)
        low = x.data_ptr() | w.data_ptr() | b.data_ptr() | x_stride << 1
        y_stride = hidden
        if y is None:
            y = empty_like(x)
        elif y is x:
            y_stride = x_stride
        else:
            y_stride = hidden if y.is_contiguous() else row_stride(y)
            low |= y.data_ptr() | y_stride << 1
        count = x.numel() // hidden
        if count:
            each, launch = (slow if low & 15 else fast)[x.get_device()]
            launch(-(-count // each), 1, 1, x, w, b, y, x_stride, y_stride, count)
        return y

    return run


def _normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, y: Tensor | None
) -> Tensor:
    """Launches layer_norm; a kernel is given another tensor for one that is absent."""
    w = weight if weight is not None else bias if bias is not None else x
    b = bias if bias is not None else w
    with_weight, with_bias = weight is not None, bias is not None
    return _runner(x.dtype, w.dtype, x.shape[-1], eps, with_weight, with_bias)(x, w, b, y)


def _site(inplace: bool, *kind: Any) -> Site:
    """The function of a site whose calls have weight and bias; others go the long way."""
    *sizes, dense = kind
    run = _runner(*sizes, True, True, dense)

    def layer_norm(
        x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor | None:
        y = x if inplace else None
        if weight is None or bias is None:
            y = _normalise(x, weight, bias, eps, y)
        else:
            y = run(x, weight, bias, y)
        return None if inplace else y

    return layer_norm


_PATHS: Final = ("x.dtype", "weight.dtype", "hidden", "eps")
_FRESH: Final = at_bind(partial(_site, False), *_PATHS, dense=("x",))
_INPLACE: Final = at_bind(partial(_site, True), *_PATHS, dense=("x",))


@implements(
    "layer_norm@1",
    name="triton_aligned",
    domain=_ALIGNED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_FRESH,
)
@implements(
    "layer_norm@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_FRESH,
)
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    return _normalise(x, weight, bias, eps, None)


@implements(
    "layer_norm_@1",
    name="triton_aligned",
    domain=_ALIGNED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_INPLACE,
)
@implements(
    "layer_norm_@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_INPLACE,
)
def layer_norm_(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> None:
    """Normalises the rows of ``x`` in place."""
    _normalise(x, weight, bias, eps, x)


@implements(
    "layer_norm_out@1",
    name="triton_aligned",
    domain=[*_ALIGNED, rows("out", VECTOR), offset_aligned("out", 16)],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
@implements(
    "layer_norm_out@1",
    name="triton",
    domain=[*_DOMAIN, rows("out")],
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def layer_norm_out(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    out: Tensor,
) -> None:
    """Normalises rows into ``out``."""
    _normalise(x, weight, bias, eps, out)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for compilation ahead of time."""
    for hidden in (768, 4096, 5120):
        given = {"HIDDEN": hidden, "EPS": 1e-5, "WEIGHT": True, "BIAS": True}
        _, config = TUNED.defaults(arch, {"hidden": hidden})[-1]
        bf16 = torch.bfloat16
        yield f"layer_norm-{hidden}", variant(bf16, bf16, aligned=True, given={**given, **config})
