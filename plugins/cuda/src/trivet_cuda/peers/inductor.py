"""The operators' references, compiled by PyTorch (Inductor): what a compiler makes by itself.

Each operator is compiled at its first call, anew for every shape (``dynamic=False``): numbers of
tokens that vary belong into buckets, as in a captured graph. PyTorch gives up after some shapes and
runs the reference instead, which rounds elsewhere: equal calls of one process may differ, and no
kernel is declared deterministic. ``fresh`` compiles one more copy, of which that is not true yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor

import trivet
from trivet.contracts import Term, contiguous, dtype, implements
from trivet_cuda.peers.installed import FLOATS, package

NEED: Final = package("triton", "pip install triton, which torch.compile needs")
_ROWS: Final[list[Term]] = [dtype("x", *FLOATS), contiguous("x")]
_NORM: Final[list[Term]] = [*_ROWS, dtype("weight", *FLOATS), contiguous("weight")]
_FUSED: Final[list[Term]] = [*_NORM, contiguous("residual")]
_ROTARY: Final[list[Term]] = [dtype("q", *FLOATS), contiguous("q"), contiguous("k")]
_CACHE: Final[list[Term]] = [contiguous("k"), contiguous("v"), contiguous("slots")]


def reference(name: str) -> Callable[..., Any]:
    """The reference of an operator."""
    found: Callable[..., Any] = trivet.device("reference").operators[name].reference
    return found


def fresh(name: str) -> Callable[..., Any]:
    """A compiled copy of a reference, whose shapes PyTorch counts by themselves."""
    plain = reference(name)
    assert isinstance(plain, FunctionType)  # noqa: S101  # core declares functions alone
    code = plain.__code__.replace(co_name=f"{name}_of_its_own")
    own = FunctionType(code, plain.__globals__, name, plain.__defaults__, plain.__closure__)
    made: Callable[..., Any] = torch.compile(own, dynamic=False)
    return made


@cache
def compiled(name: str) -> Callable[..., Any]:
    """The compiled reference of an operator, one in this process."""
    return fresh(name)


@implements(
    "rms_norm@1",
    name="inductor",
    domain=_NORM,
    requires=[NEED],
    graph_safe=True,
    checks=False,
    on_request=True,
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
    y: Tensor = compiled("rms_norm")(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )
    return y


@implements(
    "fused_add_rms_norm@1",
    name="inductor",
    domain=_FUSED,
    requires=[NEED],
    graph_safe=True,
    checks=False,
    on_request=True,
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
    y, total = compiled("fused_add_rms_norm")(
        x, residual, weight, eps, weight_offset, weight_in_float32, variance_size
    )
    return y, total


@implements(
    "silu_and_mul@1",
    name="inductor",
    domain=_ROWS,
    requires=[NEED],
    graph_safe=True,
    checks=False,
    on_request=True,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates into a fresh tensor."""
    y: Tensor = compiled("silu_and_mul")(x)
    return y


@implements(
    "gelu_and_mul@1",
    name="inductor",
    domain=_ROWS,
    requires=[NEED],
    graph_safe=True,
    checks=False,
    on_request=True,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates into a fresh tensor."""
    y: Tensor = compiled("gelu_and_mul")(x, approximate)
    return y


@implements(
    "rotary_embedding@1",
    name="inductor",
    domain=_ROTARY,
    requires=[NEED],
    graph_safe=True,
    checks=False,
    on_request=True,
)
def rotary_embedding(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Turns into fresh tensors."""
    return list(compiled("rotary_embedding")(q, k, cos, sin, pairing))


@implements(
    "kv_cache_write@1",
    name="inductor",
    domain=_CACHE,
    requires=[NEED],
    graph_safe=True,
    checks=False,
    on_request=True,
)
def kv_cache_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Copies each token's rows into its slot."""
    compiled("kv_cache_write")(k, v, k_cache, v_cache, slots, layout)
