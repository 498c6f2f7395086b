"""Writing keys and values into a paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._choices import declared
from trivet.contracts import Budget, Cases, operator

LAYOUTS = ("NHD",)
"""Orders of a cache block: ``NHD`` is ``[blocks, block_size, kv_heads, head_dim]``."""


def by_token(  # the operator's signature
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",  # noqa: ARG001
) -> None:
    """Writes token by token."""
    width = (k.shape[-2], k.shape[-1])
    for token, slot in enumerate(slots.flatten().tolist()):
        if slot >= 0:
            block, row = divmod(slot, k_cache.shape[1])
            k_cache[block, row] = k.reshape(-1, *width)[token]
            v_cache[block, row] = v.reshape(-1, *width)[token]


def distinct_slots(
    dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator
) -> dict[str, Any]:
    """Distinct slots in random order, about one in four skipped."""
    del dtype
    capacity, tokens = dims["blocks"] * dims["block_size"], dims["tokens"]
    slots = torch.randperm(capacity, generator=rng)[:tokens]
    skipped = torch.rand(tokens, generator=rng) < 0.25
    return {"slots": slots.masked_fill(skipped, -1)}


@operator(
    shapes={
        "k": "*tokens kv_heads head_dim",
        "v": "*tokens kv_heads head_dim",
        "k_cache": "blocks block_size kv_heads head_dim",
        "v_cache": "blocks block_size kv_heads head_dim",
        "slots": "*tokens",
    },
    dtypes={"k_cache": "C", "v_cache": "C", "slots": "int64"},
    writes=("k_cache", "v_cache"),
    choices={"layout": LAYOUTS},
    moved=[
        ("*tokens kv_heads head_dim", "k"),
        ("*tokens kv_heads head_dim", "v"),
        ("*tokens", "slots"),
        ("*tokens kv_heads head_dim", "k_cache"),
        ("*tokens kv_heads head_dim", "v_cache"),
    ],
    cases=Cases(
        sizes=(
            {"tokens": 7, "kv_heads": 3, "head_dim": 64, "blocks": 5, "block_size": 16},
            {"tokens": 1, "kv_heads": 1, "head_dim": 80, "blocks": 3, "block_size": 1},
            {"tokens": 40, "kv_heads": 2, "head_dim": 17, "blocks": 7, "block_size": 8},
            {"tokens": 0, "kv_heads": 2, "head_dim": 8, "blocks": 2, "block_size": 4},
        ),
        inputs=distinct_slots,
    ),
    budget=Budget("exact"),
    oracle=by_token,
)
def kv_cache_write(  # the cache is six tensors and a choice
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Writes each token's key and value into its slot of a paged cache.

    Source: Kwon et al. 2023 (PagedAttention), arXiv:2309.06180. Slot ``s`` is row
    ``s % block_size`` of block ``s // block_size``; tokens with a slot < 0 are skipped. Slots of
    one call are distinct. ``k_cache`` and ``v_cache`` are separate base tensors, never views of
    one base, and may have another dtype than ``k`` and ``v``.
    """
    declared("layout", layout, LAYOUTS)
    width = k.shape[-2:]
    flat, capacity = slots.reshape(-1), k_cache.shape[0] * k_cache.shape[1]
    if not flat.shape[0] or not capacity:
        return
    # a skipped token repeats the first kept one, so that no size depends on data
    keep = flat >= 0
    first = keep.to(torch.uint8).argmax(0, keepdim=True)
    slot = torch.where(keep, flat, flat.index_select(0, first).clamp_min(0))
    place = (slot // k_cache.shape[1], slot % k_cache.shape[1])  # caches may have gaps
    for source, cache in ((k, k_cache), (v, v_cache)):
        given = source.reshape(-1, *width).to(cache.dtype)
        rows = torch.where(keep[:, None, None], given, given.index_select(0, first))
        rows = torch.where(keep.any(), rows, cache[place])
        cache.index_put_(place, rows)
