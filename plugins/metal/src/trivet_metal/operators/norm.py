"""rms_norm and fused_add_rms_norm: a threadgroup takes a row."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, rows
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import group_for, row_stride, rows_of

Scalars = tuple[float, float, bool, int]
"""eps, weight_offset, weight_in_float32, variance_size."""

_SCALARS: Final = (
    "width: int32", "variance: int32", "eps: float", "offset: float", "in_float32: int32",
)  # fmt: skip
RMS_NORM: Final = Package(
    "norm.metal",
    "rms_norm_{T}_{W}",
    ("x: in T*", "weight: in W*", "y: out T*", "x_stride: int64", "y_stride: int64", *_SCALARS),
)
FUSED: Final = Package(
    "norm.metal",
    "fused_add_rms_norm_{T}_{W}",
    (
        "x: in T*", "residual: in T*", "weight: in W*", "y: out T*", "total: out T*",
        "x_stride: int64", "residual_stride: int64", "y_stride: int64", "total_stride: int64",
        *_SCALARS,
    ),
)  # fmt: skip

NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    rows("x"),
    contiguous("weight"),
    between("hidden", 1, None),
]
FUSED_NORM: Final[list[Term]] = [*NORM, equal("residual.dtype", "x.dtype"), rows("residual")]


def prefix(width: int, variance_size: int) -> int:
    """Elements of a row that its mean square is taken over.

    Raises:
        DomainError: a row has no such prefix.
    """
    if not 0 <= variance_size <= width:
        msg = f"variance_size={variance_size} in rows of {width} elements"
        raise DomainError(msg, fix="pass 0 for the whole row, or at most its length")
    return variance_size or width


def normalise(x: Tensor, weight: Tensor, y: Tensor, scalars: Scalars) -> None:
    """Normalises the rows of ``x`` into ``y``, which may be ``x``."""
    eps, offset, in_float32, variance_size = scalars
    width = x.shape[-1]
    variance = prefix(width, variance_size)
    if not x.numel():
        return
    group = group_for(width)
    RMS_NORM.at(T=x.dtype, W=weight.dtype)(
        x, weight, y, row_stride(x), row_stride(y), width, variance, eps, offset, in_float32,
        threads=(x.numel() // width * group,), group=(group,),
    )  # fmt: skip


def add_and_normalise(
    x: Tensor, residual: Tensor, weight: Tensor, y: Tensor, total: Tensor, scalars: Scalars
) -> None:
    """Adds into ``total`` and normalises into ``y``; these may be ``residual`` and ``x``."""
    eps, offset, in_float32, variance_size = scalars
    width = x.shape[-1]
    variance = prefix(width, variance_size)
    if not x.numel():
        return
    group = group_for(width)
    FUSED.at(T=x.dtype, W=weight.dtype)(
        x, residual, weight, y, total,
        row_stride(x), row_stride(residual), row_stride(y), row_stride(total),
        width, variance, eps, offset, in_float32,
        threads=(x.numel() // width * group,), group=(group,),
    )  # fmt: skip


@implements(
    "rms_norm@1",
    name="metal",
    domain=NORM,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    y = x.new_empty(x.shape)
    normalise(x, weight, y, (eps, weight_offset, weight_in_float32, variance_size))
    return y


@implements(
    "rms_norm_@1",
    name="metal",
    domain=NORM,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    normalise(x, weight, x, (eps, weight_offset, weight_in_float32, variance_size))


@implements(
    "rms_norm_out@1",
    name="metal",
    domain=[*NORM, rows("out")],
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
    normalise(x, weight, out, (eps, weight_offset, weight_in_float32, variance_size))


@implements(
    "fused_add_rms_norm@1",
    name="metal",
    domain=FUSED_NORM,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    y, total = x.new_empty(x.shape), x.new_empty(x.shape)
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    add_and_normalise(x, residual, weight, y, total, scalars)
    return y, total


@implements(
    "fused_add_rms_norm_@1",
    name="metal",
    domain=FUSED_NORM,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    add_and_normalise(x, residual, weight, x, residual, scalars)


@implements(
    "fused_add_rms_norm_out@1",
    name="metal",
    domain=FUSED_NORM,
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
    y, total = rows_of(out)
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    add_and_normalise(x, residual, weight, y, total, scalars)
