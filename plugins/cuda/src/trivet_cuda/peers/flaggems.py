"""FlagGems' Triton kernels, through the functions that it exports.

Read at 5.0.2. Norms multiply by the weight in float32 and round once; ``fused_add_rms_norm`` works
in place and normalises the sum before it is rounded, which is nearer to the truth than the operator
asks. Rows of more than 4096 are summed in tiles whose size is timed at their first call, so that
another process may give other bits. The rotary kernel is used into fresh tensors: in place, threads
of one program read features that others of it write. It turns all features of a head; other heads
are copied and narrowed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, equal, implements, one_of, present, rank, rows
from trivet_cuda.peers.arguments import positions, unit_scale
from trivet_cuda.peers.installed import FLOATS, load, loading, package
from trivet_cuda.peers.residence import on_gpu
from trivet_cuda.peers.vllm_libraries import before_others

NEED: Final = package("flag_gems", "pip install flag-gems (5.0.2 was read)")

_ONCE: Final[list[Term]] = [
    equal("weight_offset", 0.0),
    equal("weight_in_float32", True),
    equal("variance_size", 0),
]
_NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    contiguous("x"),
    contiguous("weight"),
    *_ONCE,
]
_FUSED: Final[list[Term]] = [*_NORM, equal("residual.dtype", "x.dtype"), contiguous("residual")]
_GATE: Final[list[Term]] = [dtype("x", *FLOATS), contiguous("x")]
_ROTARY: Final[list[Term]] = [
    dtype("q", *FLOATS),
    present("k"),
    equal("k.dtype", "q.dtype"),
    rank("q", 3),
    contiguous("q"),
    contiguous("k"),
    contiguous("cos"),
    contiguous("sin"),
]
_CACHE: Final[list[Term]] = [
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
def _gems() -> Any:
    before_others()  # it defines what it does not find of them, and then they cannot be loaded
    return load("flag_gems", NEED)


_resolve = loading(_gems)


@implements(
    "rms_norm@1",
    name="flaggems",
    domain=_NORM,
    requires=[NEED],
    graph_safe=True,
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
    if not x.numel():
        return torch.empty_like(x)
    y: Tensor = _gems().rms_norm(x, (x.shape[-1],), weight, eps)
    return y


@implements(
    "fused_add_rms_norm_@1",
    name="flaggems",
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
        _gems().fused_add_rms_norm(x, residual, (x.shape[-1],), weight, eps)


@implements(
    "silu_and_mul@1",
    name="flaggems",
    domain=_GATE,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates into a fresh tensor; the halves are read where they lie."""
    on_gpu(x)
    gate, value = x.chunk(2, -1)
    if not gate.numel():
        return torch.empty_like(gate, memory_format=torch.contiguous_format)
    y: Tensor = _gems().silu_and_mul(gate, value)
    return y.contiguous()


@implements(
    "gelu_and_mul@1",
    name="flaggems",
    domain=_GATE,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates into a fresh tensor; the halves are read where they lie."""
    on_gpu(x)
    gate, value = x.chunk(2, -1)
    if not gate.numel():
        return torch.empty_like(gate, memory_format=torch.contiguous_format)
    y: Tensor = _gems().gelu_and_mul(gate, value, approximate)
    return y.contiguous()


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, at: Tensor, pairing: str
) -> list[Tensor]:
    """Turns whole heads into fresh tensors: FlagGems' own arguments."""
    return list(_gems().apply_rotary_pos_emb(q, k, cos, sin, at, pairing == "interleaved", False))


@implements(
    "rotary_embedding@1",
    name="flaggems",
    domain=_ROTARY,
    requires=[NEED],
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_resolve,
    on_request=True,
)
def rotary_embedding(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Turns into fresh tensors."""
    on_gpu(q, k, cos, sin)
    assert k is not None  # noqa: S101  # by the domain
    turned = 2 * cos.shape[-1]
    if not q.numel():
        return [q.clone(), k.clone()]
    at = positions(q.shape[0], q.device)
    if turned == q.shape[-1]:
        return rotate(q, k, cos, sin, at, pairing)
    whole = [q.clone(), k.clone()]
    a, b = (t[..., :turned].contiguous() for t in (q, k))
    for t, part in zip(whole, rotate(a, b, cos, sin, at, pairing), strict=True):
        t[..., :turned] = part
    return whole


@implements(
    "kv_cache_write@1",
    name="flaggems",
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
        _gems().reshape_and_cache_flash(k, v, k_cache, v_cache, slots, "auto", unit, unit)
