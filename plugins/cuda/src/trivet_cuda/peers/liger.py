"""Liger's Triton kernels, through the functions that its modules call.

Read at 0.8.5. Its casting mode ``llama`` rounds the normalised row before the weight, ``gemma``
multiplies in float32; the offset is added in float32 in both, so that only 0 means the same. A
gated activation is rounded before it is multiplied: inside the operator's budget on average,
outside of it for rows of one number whose two roundings agree. GELU has the tanh form only, and
takes copies of the two halves. Its rotary kernel wants heads before tokens and doubled angles; it
is not offered.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, one_of
from trivet_cuda.peers.installed import FLOATS, load, loading, package
from trivet_cuda.peers.residence import current

NEED: Final = package("liger_kernel", "pip install liger-kernel (0.8.5 was read)")
_WIDEST: Final = 65536  # a row is one block

_NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    contiguous("x"),
    contiguous("weight"),
    between("hidden", 1, _WIDEST),
    equal("weight_offset", 0.0),
    equal("variance_size", 0),
]
_FUSED: Final[list[Term]] = [*_NORM, equal("residual.dtype", "x.dtype"), contiguous("residual")]
_GATE: Final[list[Term]] = [dtype("x", *FLOATS), contiguous("x"), between("inter", 1, _WIDEST)]


@cache
def _ops() -> Any:
    return load("liger_kernel.ops", NEED)


def _casting(in_float32: bool) -> str:
    return "gemma" if in_float32 else "llama"


_resolve = loading(_ops)


@implements(
    "rms_norm@1",
    name="liger",
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
    weight_in_float32: bool = False,
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    with current(x, weight):
        casting = _casting(weight_in_float32)
        y: Tensor = _ops().LigerRMSNormFunction.apply(x, weight, eps, weight_offset, casting, False)
    return y


@implements(
    "fused_add_rms_norm@1",
    name="liger",
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
    weight_in_float32: bool = False,
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> tuple[Tensor, Tensor]:
    """Adds and normalises into two fresh tensors."""
    with current(x, residual, weight):
        y, total = _ops().LigerFusedAddRMSNormFunction.apply(
            x, residual, weight, eps, weight_offset, _casting(weight_in_float32), False
        )
    return y, total


@implements(
    "silu_and_mul@1",
    name="liger",
    domain=_GATE,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates into a fresh tensor: both halves of a row in one kernel."""
    with current(x):
        y: Tensor = _ops().LigerFusedGateUpSiLUMulFunction.apply(x)
    return y


@implements(
    "gelu_and_mul@1",
    name="liger",
    domain=[*_GATE, one_of("approximate", "tanh")],
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:  # noqa: ARG001  # tanh
    """Gates into a fresh tensor; Liger copies the two halves first."""
    with current(x):
        gate, value = x.chunk(2, -1)
        y: Tensor = _ops().LigerGELUMulFunction.apply(gate, value)
    return y
