"""PyTorch's own functions, as an engine without any kernel library would call them.

``F.rms_norm`` multiplies by the weight in float32 and rounds once. A gated activation is two
kernels, rounded in between: inside the operator's budget on average, outside of it for rows of one
number whose two roundings agree.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from trivet.contracts import (
    Term,
    absent,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    offset_aligned,
)
from trivet_cuda.peers.installed import FLOATS

_NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    equal("weight.dtype", "x.dtype"),
    equal("weight_offset", 0.0),
    equal("weight_in_float32", True),
    equal("variance_size", 0),
]
_FUSED: Final[list[Term]] = [*_NORM, equal("residual.dtype", "x.dtype")]
_ROWS: Final[list[Term]] = [dtype("x", *FLOATS)]
_DENSE: Final[list[Term]] = [
    dtype("q", "float16", "bfloat16"),  # of float32 its error is outside of the budget
    equal("k.dtype", "q.dtype"),
    equal("v.dtype", "q.dtype"),
    divisible("head_dim", 8),  # rows at 16 bytes, or torch reads what is beside them
    divisible("value_dim", 8),
    *(contiguous(name) for name in "qkv"),
    *(offset_aligned(name, 16) for name in "qkv"),
    absent("mask"),
    equal("queries", "keys"),  # torch aligns causal positions at the start
    equal("window", 0),
    equal("soft_cap", 0.0),
]


@implements(
    "rms_norm@1",
    name="torch",
    domain=_NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
    on_request=True,
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,  # noqa: ARG001  # 0 by the domain
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


@implements(
    "fused_add_rms_norm@1",
    name="torch",
    domain=_FUSED,
    graph_safe=True,
    deterministic=True,
    checks=False,
    on_request=True,
)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,  # noqa: ARG001  # 0 by the domain
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> tuple[Tensor, Tensor]:
    """Adds, then normalises: two kernels."""
    total = x + residual
    return functional.rms_norm(total, (x.shape[-1],), weight, eps), total


@implements(
    "silu@1",
    name="torch",
    domain=_ROWS,
    graph_safe=True,
    deterministic=True,
    checks=False,
    on_request=True,
)
def silu(x: Tensor) -> Tensor:
    """Activates into a fresh tensor."""
    return functional.silu(x).contiguous()


@implements(
    "gelu@1",
    name="torch",
    domain=_ROWS,
    graph_safe=True,
    deterministic=True,
    checks=False,
    on_request=True,
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Activates into a fresh tensor."""
    return functional.gelu(x, approximate=approximate).contiguous()


@implements(
    "silu_and_mul@1",
    name="torch",
    domain=_ROWS,
    graph_safe=True,
    deterministic=True,
    checks=False,
    on_request=True,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates into a fresh tensor: two kernels, the second in place."""
    gate, value = x.chunk(2, -1)
    return functional.silu(gate).mul_(value).contiguous()


@implements(
    "gelu_and_mul@1",
    name="torch",
    domain=_ROWS,
    graph_safe=True,
    deterministic=True,
    checks=False,
    on_request=True,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates into a fresh tensor: two kernels, the second in place."""
    gate, value = x.chunk(2, -1)
    return functional.gelu(gate, approximate=approximate).mul_(value).contiguous()


@implements(
    "attention@1",
    name="sdpa",
    domain=_DENSE,
    graph_safe=True,
    checks=False,
    on_request=True,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,  # noqa: ARG001  # absent by the domain
    scale: float,
    causal: bool = False,
    window: int = 0,  # noqa: ARG001  # 0 by the domain
    soft_cap: float = 0.0,  # noqa: ARG001  # 0 by the domain
) -> Tensor:
    """Attends with ``scaled_dot_product_attention``, whichever of its kernels torch takes."""
    if not q.numel():
        return torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    found = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return found.transpose(1, 2).contiguous()
