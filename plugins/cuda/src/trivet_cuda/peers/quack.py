"""Quack's norms, written in CuTe and compiled at the first call of each width.

Read at 0.6.5: ``quack.rmsnorm(x, weight, bias, residual, out_dtype, residual_dtype, eps, prenorm,
weight_offset)``. The weight, with its offset, is multiplied in float32 and the result rounded once.
With a residual the sum is normalised before it is rounded, which is nearer to the truth than the
operator asks; ``prenorm`` returns the sum, too.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from torch import Tensor

from trivet.contracts import Term, contiguous, divisible, dtype, equal, implements, offset_aligned
from trivet_cuda.peers.installed import FLOATS, load, loading, package
from trivet_cuda.peers.residence import current

NEED: Final = package("quack", "pip install quack-kernels (0.6.5 was read)")

_NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    contiguous("x"),
    contiguous("weight"),
    offset_aligned("x", 16),
    offset_aligned("weight", 16),
    divisible("hidden", 8),  # a load of 16 bytes never leaves its row
    equal("weight_in_float32", True),
    equal("variance_size", 0),
]
_FUSED: Final[list[Term]] = [
    *_NORM,
    equal("residual.dtype", "x.dtype"),
    contiguous("residual"),
    offset_aligned("residual", 16),
]


@cache
def _rmsnorm() -> Any:
    return load("quack", NEED).rmsnorm


_resolve = loading(_rmsnorm)


@implements(
    "rms_norm@1",
    name="quack",
    domain=_NORM,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    with current(x, weight):
        y: Tensor = _rmsnorm()(x, weight, eps=eps, weight_offset=weight_offset)
    return y


@implements(
    "fused_add_rms_norm@1",
    name="quack",
    domain=_FUSED,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> tuple[Tensor, Tensor]:
    """Adds and normalises into two fresh tensors."""
    with current(x, residual, weight):
        y, total = _rmsnorm()(
            x, weight, residual=residual, eps=eps, prenorm=True, weight_offset=weight_offset
        )
    return y, total
