"""FlashInfer's kernels for norms, gates and rotary embedding; some are compiled at the first call.

Read at 0.7.4. Norms multiply by the weight in float32 and round once; those named after Gemma add 1
to the weight. ``fused_add_rmsnorm`` normalises the sum before it is rounded, which is nearer to the
truth than the operator asks. Its paged writes and its attention take a plan of their own instead of
slots and block tables; they are not offered, the benchmark of decoding calls them directly.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import (
    Term,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    offset_aligned,
    one_of,
    present,
    rank,
)
from trivet_cuda.peers.arguments import positions
from trivet_cuda.peers.installed import HALVES, load, loading, package
from trivet_cuda.peers.residence import on_gpu

NEED: Final = package("flashinfer", "pip install flashinfer-python (0.7.4 was read)")

_NORM: Final[list[Term]] = [
    dtype("x", *HALVES),
    rank("x", 2),
    contiguous("x"),
    offset_aligned("x", 16),
    divisible("hidden", 8),
    equal("weight.dtype", "x.dtype"),
    contiguous("weight"),
    offset_aligned("weight", 16),
    one_of("weight_offset", 0.0, 1.0),
    equal("weight_in_float32", True),
    equal("variance_size", 0),
]
_FUSED: Final[list[Term]] = [
    *_NORM,
    equal("residual.dtype", "x.dtype"),
    contiguous("residual"),
    offset_aligned("residual", 16),
]
_GATE: Final[list[Term]] = [
    dtype("x", *HALVES),
    contiguous("x"),
    offset_aligned("x", 16),
    divisible("inter", 8),
]
_ROTARY: Final[list[Term]] = [
    dtype("q", *HALVES),
    present("k"),
    equal("k.dtype", "q.dtype"),
    rank("q", 3),
    contiguous("q"),
    contiguous("k"),
    offset_aligned("q", 16),
    offset_aligned("k", 16),
    one_of("head_dim", 64, 128, 256),
    divisible("rotary_half", 8),
]


@cache
def _infer() -> Any:
    return load("flashinfer", NEED)


_resolve = loading(_infer)


@implements(
    "rms_norm@1",
    name="flashinfer",
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
    on_gpu(x, weight)
    if not x.numel():
        return torch.empty_like(x)
    own = _infer()
    y: Tensor = (own.gemma_rmsnorm if weight_offset else own.rmsnorm)(x, weight, eps)
    return y


@implements(
    "fused_add_rms_norm_@1",
    name="flashinfer",
    domain=_FUSED,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> None:
    """Adds into ``residual`` and normalises into ``x``."""
    on_gpu(x, residual, weight)
    if x.numel():
        own = _infer()
        kernel = own.gemma_fused_add_rmsnorm if weight_offset else own.fused_add_rmsnorm
        kernel(x, residual, weight, eps)


@implements(
    "silu_and_mul@1",
    name="flashinfer",
    domain=_GATE,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates into a fresh tensor."""
    on_gpu(x)
    if not x.numel():
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    y: Tensor = _infer().silu_and_mul(x)
    return y


@implements(
    "gelu_and_mul@1",
    name="flashinfer",
    domain=_GATE,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates into a fresh tensor; each approximation is a kernel of its own."""
    on_gpu(x)
    if not x.numel():
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    own = _infer()
    y: Tensor = (own.gelu_tanh_and_mul if approximate == "tanh" else own.gelu_and_mul)(x)
    return y


def rotate_(q: Tensor, k: Tensor, at: Tensor, table: Tensor, pairing: str) -> None:
    """Turns in place with rows of a table of cosines, then sines: FlashInfer's own arguments."""
    _infer().apply_rope_with_cos_sin_cache_inplace(at, q, k, q.shape[-1], table, pairing == "neox")


@implements(
    "rotary_embedding_@1",
    name="flashinfer",
    domain=_ROTARY,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def rotary_embedding_(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> None:
    """Turns ``q`` and ``k`` in place; its table is made of the angles at every call."""
    on_gpu(q, k, cos, sin)
    assert k is not None  # noqa: S101  # by the domain
    if q.numel():
        rotate_(q, k, positions(q.shape[0], q.device), torch.cat((cos, sin), -1), pairing)
