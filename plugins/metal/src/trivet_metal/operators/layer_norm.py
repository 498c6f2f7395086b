"""layer_norm: a threadgroup takes a row."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, implements, rows
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import group_for, row_stride

LAYER_NORM: Final = Package(
    "layer_norm.metal",
    "layer_norm_{T}_{W}",
    (
        "x: in T*", "weight: in W*", "bias: in W*", "y: out T*",
        "x_stride: int64", "y_stride: int64",
        "width: int32", "weighted: int32", "shifted: int32", "eps: float",
    ),
)  # fmt: skip
_DOMAIN: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    dtype("bias", *FLOATS),
    rows("x"),
    contiguous("weight"),
    contiguous("bias"),
    between("hidden", 1, None),
]


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, y: Tensor) -> None:
    """Normalises the rows of ``x`` into ``y``, which may be ``x``."""
    if not x.numel():
        return
    width = x.shape[-1]
    group = group_for(width)
    parameter = bias if weight is None else weight
    kernel = LAYER_NORM.at(T=x.dtype, W=x.dtype if parameter is None else parameter.dtype)
    kernel(
        x, weight, bias, y, row_stride(x), row_stride(y),
        width, weight is not None, bias is not None, eps,
        threads=(x.numel() // width * group,), group=(group,),
    )  # fmt: skip


@implements(
    "layer_norm@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    y = x.new_empty(x.shape)
    normalise(x, weight, bias, eps, y)
    return y


@implements(
    "layer_norm_@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def layer_norm_(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> None:
    """Normalises the rows of ``x`` in place."""
    normalise(x, weight, bias, eps, x)


@implements(
    "layer_norm_out@1",
    name="metal",
    domain=[*_DOMAIN, rows("out")],
    deterministic=True,
    batch_invariant=True,
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
    normalise(x, weight, bias, eps, out)
