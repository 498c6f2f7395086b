"""vLLM's compiled kernels (``torch.ops._C``), loaded from its library alone.

Read at 0.33.0, whose wheel has all of them in ``_C_stable_libtorch.abi3.so``; older wheels have
``_C.abi3.so``. Importing ``vllm`` itself would bring its whole engine, so its libraries are loaded
instead, unless somebody has registered the operators already. Norms multiply by the weight in
float32 and round once. A gated activation is rounded before it is multiplied: inside the operator's
budget on average, outside of it for rows of one number whose two roundings agree.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import (
    Term,
    contiguous,
    dtype,
    equal,
    implements,
    offset_aligned,
    one_of,
    rank,
    rows,
)
from trivet_cuda.peers.arguments import positions, unit_scale
from trivet_cuda.peers.installed import FLOATS, loading
from trivet_cuda.peers.residence import on_gpu
from trivet_cuda.peers.vllm_libraries import KERNELS, NEED, loaded

_ONCE: Final[list[Term]] = [
    equal("weight_offset", 0.0),
    equal("weight_in_float32", True),
    equal("variance_size", 0),
]
_ROWS: Final[list[Term]] = [dtype("x", *FLOATS), contiguous("x"), offset_aligned("x", 16)]
_NORM: Final[list[Term]] = [
    *_ROWS,
    rank("x", 2, 3, 4),
    equal("weight.dtype", "x.dtype"),
    contiguous("weight"),
    offset_aligned("weight", 16),
    *_ONCE,
]
_FUSED: Final[list[Term]] = [
    *_NORM,
    equal("residual.dtype", "x.dtype"),
    contiguous("residual"),
    offset_aligned("residual", 16),
]
_ROTARY: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    rank("q", 3),
    rows("q"),
    rows("k"),
]
_CACHE: Final[list[Term]] = [
    dtype("k", *FLOATS),
    rank("k", 3),
    rows("k"),
    rows("v"),
    equal("k_cache.dtype", "k.dtype"),
    equal("v.dtype", "k.dtype"),
    equal("v_cache.dtype", "k.dtype"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    contiguous("slots"),
    one_of("layout", "NHD"),
]


@cache
def ops() -> Any:
    """``torch.ops._C``, with everything that is called here.

    Raises:
        PluginBroken: the libraries are not there, do not load or must not be loaded.
    """
    return loaded(KERNELS)


@cache
def _write() -> Any:
    ops()
    return torch.ops._C_cache_ops.reshape_and_cache_flash  # noqa: SLF001


_resolve = loading(ops)


@implements(
    "rms_norm@1",
    name="vllm",
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
    weight_offset: float = 0.0,  # noqa: ARG001  # 0 by the domain
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    on_gpu(x, weight)
    y = torch.empty_like(x)
    if x.numel():
        ops().rms_norm(y, x, weight, eps)
    return y


@implements(
    "fused_add_rms_norm_@1",
    name="vllm",
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
    weight_offset: float = 0.0,  # noqa: ARG001  # 0 by the domain
    weight_in_float32: bool = False,  # noqa: ARG001  # True by the domain
    variance_size: int = 0,  # noqa: ARG001  # 0 by the domain
) -> None:
    """Adds into ``residual`` and normalises into ``x``."""
    on_gpu(x, residual, weight)
    if x.numel():
        ops().fused_add_rms_norm(x, residual, weight, eps)


def _gated(kernel: Any, x: Tensor) -> Tensor:
    y = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    if y.numel():
        kernel(y, x)
    return y


@implements(
    "silu_and_mul@1",
    name="vllm",
    domain=_ROWS,
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
    return _gated(ops().silu_and_mul, x)


@implements(
    "gelu_and_mul@1",
    name="vllm",
    domain=_ROWS,
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
    own = ops()
    return _gated(own.gelu_tanh_and_mul if approximate == "tanh" else own.gelu_and_mul, x)


def rotate_(q: Tensor, k: Tensor | None, at: Tensor, table: Tensor, pairing: str) -> None:
    """Turns in place with rows of a table of cosines, then sines: vLLM's own arguments."""
    ops().rotary_embedding(at, q, k, q.shape[-1], table, pairing == "neox")


@implements(
    "rotary_embedding_@1",
    name="vllm",
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
    if q.numel():
        at = positions(q.shape[0], q.device)
        rotate_(q, k, at, torch.cat((cos, sin), -1), pairing)


@implements(
    "kv_cache_write@1",
    name="vllm",
    domain=_CACHE,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def kv_cache_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",  # noqa: ARG001  # NHD by the domain
) -> None:
    """Copies each token's rows into its slot."""
    on_gpu(k, v, k_cache, v_cache, slots)
    if k.numel():
        unit = unit_scale(k.device)
        _write()(k, v, k_cache, v_cache, slots, "auto", unit, unit)
