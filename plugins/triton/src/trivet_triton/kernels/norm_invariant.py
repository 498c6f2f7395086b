"""The same norms where a row must not depend on how many there are: one config a row length.

One compiled program computes every row of a given length, in one order of additions; how many
rows a call has decides the size of the grid alone. Alignment is part of the domain, since the
program for unaligned rows adds in another order.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import Term, divisible, implements, offset_aligned, rows
from trivet_triton.constants import by_lanes
from trivet_triton.hardware import arch_at, architecture
from trivet_triton.kernels.norm import FUSED_NORM, NORM, arms
from trivet_triton.kernels.norm_kernels import fixed
from trivet_triton.kernels.norm_sites import Arm, adder, normaliser, resolving
from trivet_triton.kernels.row_layout import row_stride, rows_of
from trivet_triton.kernels.rows import VECTOR

_ALIGNED: Final[list[Term]] = [
    divisible("hidden", VECTOR),
    rows("x", VECTOR),
    offset_aligned("x", 16),
    offset_aligned("weight", 16),
]
_NORM: Final[list[Term]] = [*NORM, *_ALIGNED]
_FUSED: Final[list[Term]] = [
    *FUSED_NORM,
    *_ALIGNED,
    rows("residual", VECTOR),
    offset_aligned("residual", 16),
]


@cache
def choose(
    fused: bool,
    x: torch.dtype,
    weight: torch.dtype,
    hidden: int,
    aligned: bool,
    index: int,
    *scalars: Any,
) -> tuple[Arm, ...]:
    """One launch, whatever the number of rows."""
    config = by_lanes(fixed(hidden, 2 if fused else 4), architecture(arch_at(index)).lanes)
    return arms(
        ((inf, config),),
        fused,
        x,
        weight,
        hidden,
        aligned,
        index,
        *scalars,
    )


def _is_aligned(t: Tensor) -> bool:
    """Whether the program for aligned rows serves it."""
    return not t.data_ptr() & 15 and (t.is_contiguous() or not row_stride(t) % VECTOR)


@implements(
    "rms_norm@1",
    name="triton_invariant",
    domain=_NORM,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=resolving("rms_norm", choose),
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    return normaliser(
        choose, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, weight)  # fmt: skip


@implements(
    "rms_norm_@1",
    name="triton_invariant",
    domain=_NORM,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=resolving("rms_norm_", choose),
)
def rms_norm_(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    """Normalises the rows of ``x`` in place."""
    normaliser(
        choose, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, weight, x)  # fmt: skip


@implements(
    "rms_norm_out@1",
    name="triton_invariant",
    domain=[*_NORM, rows("out", VECTOR), offset_aligned("out", 16)],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def rms_norm_out(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
    *,
    out: Tensor,
) -> None:
    """Normalises rows into ``out``."""
    normaliser(
        choose, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, weight, out)  # fmt: skip


@implements(
    "fused_add_rms_norm@1",
    name="triton_invariant",
    domain=_FUSED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=resolving("fused_add_rms_norm", choose),
)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Adds and normalises into two fresh tensors."""
    return adder(
        choose, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, residual, weight)  # fmt: skip


@implements(
    "fused_add_rms_norm_@1",
    name="triton_invariant",
    domain=_FUSED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=resolving("fused_add_rms_norm_", choose),
)
def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    """Adds into ``residual`` and normalises into ``x``."""
    adder(
        choose, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, residual, weight, x, residual)  # fmt: skip


@implements(
    "fused_add_rms_norm_out@1",
    name="triton_invariant",
    domain=_FUSED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def fused_add_rms_norm_out(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
    *,
    out: list[Tensor],
) -> None:
    """Adds and normalises into ``out``: the normalised rows, then the sum."""
    run = adder(
        choose, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )  # fmt: skip
    y, total = rows_of(out)
    if _is_aligned(y) and _is_aligned(total):
        run(x, residual, weight, y, total)
        return
    # no term of a domain speaks of a list; the program for other rows adds in another order
    for wanted, made in zip((y, total), run(x, residual, weight), strict=True):
        wanted.copy_(made)
