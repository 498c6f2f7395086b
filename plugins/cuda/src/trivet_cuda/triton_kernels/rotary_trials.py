"""How the constants of the rotary kernels and of kv_cache_write are measured: calls to time.

Each function is ``trial(key, rows, config, device) -> (call, bytes moved)``: the call is the
operator's own, which takes ``config`` because the tuner makes the table answer so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from trivet_cuda.triton_kernels.kv_cache import kv_cache_write
from trivet_cuda.triton_kernels.rotary import rotary_embedding, rotary_embedding_
from trivet_cuda.triton_kernels.rotary_kv_cache import rotary_kv_cache_write

Key: TypeAlias = Mapping[str, Any]
Made: TypeAlias = tuple[Callable[[], object], int]

_HEADS: Final = ((32, 8, 128), (16, 8, 128), (64, 8, 128), (32, 32, 128), (8, 1, 128), (28, 4, 128))
"""Heads for queries and for keys, and their width, of models that are served much."""

ROTARY_KEYS: Final[tuple[Key, ...]] = tuple(
    {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": width,
        "half": width // 2,
        "dtype": "bfloat16",
        "pairing": pairing,
        "inplace": inplace,
    }
    for heads, kv_heads, width in _HEADS
    for pairing in ("neox", "interleaved")
    for inplace in (True, False)
)
FUSED_KEYS: Final[tuple[Key, ...]] = tuple(
    {n: v for n, v in key.items() if n != "inplace"} | {"cache": "bfloat16"}
    for key in ROTARY_KEYS
    if key["inplace"]
)
KV_CACHE_KEYS: Final[tuple[Key, ...]] = tuple(
    {"width": width, "dtype": "bfloat16", "cache": "bfloat16"}
    for width in (128, 256, 512, 1024, 2048, 4096)
)

_BLOCK_SIZE: Final = 16


def _packed(key: Key, rows: int, device: torch.device) -> list[Tensor]:
    """Views of q, k and v in the rows of one projection."""
    heads, kv_heads, width = key["heads"], key["kv_heads"], key["head_dim"]
    sizes = [heads * width, kv_heads * width, kv_heads * width]
    element = getattr(torch, key["dtype"])
    packed = torch.randn(rows, sum(sizes), device=device).to(element)
    return [t.view(rows, -1, width) for t in torch.split(packed, sizes, -1)]


def _angles(key: Key, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    angle = torch.randn(rows, key["half"], device=device)
    return angle.cos(), angle.sin()


def _caches(
    rows: int, heads: int, width: int, key: Key, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Caches with room for twice the rows, and a slot for each row in random order."""
    blocks = 2 * rows // _BLOCK_SIZE + 1
    shape = (blocks, _BLOCK_SIZE, heads, width)
    element = getattr(torch, key["cache"])
    caches = [torch.zeros(shape, dtype=element, device=device) for _ in range(2)]
    return caches[0], caches[1], torch.randperm(blocks * _BLOCK_SIZE, device=device)[:rows]


def rotary(key: Key, rows: int, config: Mapping[str, Any], device: torch.device) -> Made:
    """A call of rotary_embedding, in place where the key says so."""
    del config
    q, k, _ = _packed(key, rows, device)
    cos, sin = _angles(key, rows, device)
    moved = 2 * (q.nbytes + k.nbytes) + cos.nbytes + sin.nbytes
    if not key["inplace"]:
        return lambda: rotary_embedding(q, k, cos, sin, key["pairing"]), moved

    def call() -> tuple[Tensor, Tensor]:
        rotary_embedding_(q, k, cos, sin, key["pairing"])
        return q, k

    return call, moved


def rotary_kv_cache(key: Key, rows: int, config: Mapping[str, Any], device: torch.device) -> Made:
    """A call of rotary_kv_cache_write."""
    del config
    q, k, v = _packed(key, rows, device)
    cos, sin = _angles(key, rows, device)
    k_cache, v_cache, slots = _caches(rows, key["kv_heads"], key["head_dim"], key, device)

    def call() -> tuple[Tensor, Tensor, Tensor]:
        rotary_kv_cache_write(q, k, v, cos, sin, k_cache, v_cache, slots, key["pairing"])
        return q, k_cache, v_cache

    return call, 2 * (q.nbytes + k.nbytes + v.nbytes) + cos.nbytes + sin.nbytes + slots.nbytes


def kv_cache(key: Key, rows: int, config: Mapping[str, Any], device: torch.device) -> Made:
    """A call of kv_cache_write, from rows of a wider projection."""
    del config
    width = key["width"]
    element = getattr(torch, key["dtype"])
    packed = torch.randn(rows, 1, 3 * width, device=device).to(element)
    k, v = packed[..., width : 2 * width], packed[..., 2 * width :]
    k_cache, v_cache, slots = _caches(rows, 1, width, key, device)

    def call() -> tuple[Tensor, Tensor]:
        kv_cache_write(k, v, k_cache, v_cache, slots)
        return k_cache, v_cache

    return call, 2 * (k.nbytes + v.nbytes) + slots.nbytes
