"""kv_cache_write and rotary_kv_cache_write: one launch for a step's tokens."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.operators.rotary import interleaved
from trivet_metal.packages import Package
from trivet_metal.row_layout import row_stride, tile

KV_CACHE: Final = Package(
    "copies.metal",
    "kv_cache_write_{T}_{C}",
    (
        "k: in T*", "v: in T*", "k_cache: into C*", "v_cache: into C*", "slots: in long*",
        "k_stride: int64", "v_stride: int64", "capacity: int64", "features: int32",
    ),
)  # fmt: skip
ROTARY_KV_CACHE: Final = Package(
    "rotary.metal",
    "rotary_kv_cache_{T}_{C}",
    (
        "q: inout T*", "k: in T*", "v: in T*", "cos: in float*", "sin: in float*",
        "k_cache: into C*", "v_cache: into C*", "slots: in long*",
        "q_stride: int64", "k_stride: int64", "v_stride: int64",
        "cos_stride: int64", "sin_stride: int64", "capacity: int64",
        "heads: int32", "kv_heads: int32", "dim: int32", "half: int32", "interleaved: int32",
    ),
)  # fmt: skip
_CACHE: Final[list[Term]] = [
    dtype("k", *FLOATS),
    equal("v.dtype", "k.dtype"),
    dtype("k_cache", *FLOATS),
    equal("v_cache.dtype", "k_cache.dtype"),
    rows("k"),
    rows("v"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    contiguous("slots"),
    one_of("layout", "NHD"),
]
_ROTARY: Final[list[Term]] = [
    *_CACHE,
    equal("k.dtype", "q.dtype"),
    between("rotary_half", 1, None),
    rows("q"),
    rows("cos"),
    rows("sin"),
    one_of("pairing", "neox", "interleaved"),
]


def _declared(layout: str) -> None:
    if layout != "NHD":
        raise DomainError(f"layout is {layout!r}", fix="use 'NHD'")


@implements(
    "kv_cache_write@1",
    name="metal",
    domain=_CACHE,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def kv_cache_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Copies each token's rows into its slot; one that is not in the cache is left out."""
    _declared(layout)
    blocks, block_size, kv_heads, dim = k_cache.shape
    if not k.numel() or not k_cache.numel():
        return
    features = kv_heads * dim
    KV_CACHE.at(T=k.dtype, C=k_cache.dtype)(
        k, v, k_cache, v_cache, slots,
        row_stride(k, 2), row_stride(v, 2), blocks * block_size, features,
        threads=(features, k.numel() // features), group=tile(features, k.numel() // features),
    )  # fmt: skip


@implements(
    "rotary_kv_cache_write@1",
    name="metal",
    domain=_ROTARY,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def rotary_kv_cache_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    pairing: str = "neox",
    layout: str = "NHD",
) -> None:
    """Rotates and writes; a slot that is not in the cache is left out."""
    _declared(layout)
    neighbours = interleaved(pairing, "rotary_kv_cache_write")
    heads, dim = q.shape[-2:]
    blocks, block_size, kv_heads, _ = k_cache.shape
    tokens = q.numel() // (heads * dim) if heads * dim else 0
    if not tokens:
        return
    half = cos.shape[-1]
    ROTARY_KV_CACHE.at(T=q.dtype, C=k_cache.dtype)(
        q, k, v, cos, sin, k_cache, v_cache, slots,
        row_stride(q, 2), row_stride(k, 2), row_stride(v, 2), row_stride(cos), row_stride(sin),
        blocks * block_size, heads, kv_heads, dim, half, neighbours,
        threads=(dim - half, heads + 2 * kv_heads, tokens),
        group=(*tile(dim - half, heads + 2 * kv_heads), 1),
    )  # fmt: skip
