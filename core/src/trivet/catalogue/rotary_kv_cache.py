"""Rotation of queries and keys, and writing keys and values into a paged cache, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue.kv_cache import LAYOUTS, by_token, distinct_slots, kv_cache_write
from trivet.catalogue.rotary import PAIRINGS, angles, by_complex_numbers, rotary_embedding
from trivet.contracts import Cases, operator


def _oracle(
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
    """Multiplies complex numbers, then writes token by token."""
    turned, keys = by_complex_numbers(q, k, cos, sin, pairing)
    q.copy_(turned)
    by_token(keys, v, k_cache, v_cache, slots, layout)


def _inputs(dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator) -> dict[str, Any]:
    """The angles of the one part, the slots of the other."""
    return angles(dims, dtype, rng) | distinct_slots(dims, dtype, rng)


def _composed(parts: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]) -> list[Tensor]:
    """A rotation, then a write into copies of the caches."""
    turned = [given[n] for n in ("q", "k", "cos", "sin", "pairing")]
    q, k = parts["rotary_embedding"](*turned)
    caches = [given[n].clone() for n in ("k_cache", "v_cache")]
    parts["kv_cache_write"](k, given["v"], *caches, given["slots"], given["layout"])
    return [q, *caches]


@operator(
    shapes={
        "q": "*tokens heads head_dim",
        "k": "*tokens kv_heads head_dim",
        "v": "*tokens kv_heads head_dim",
        "cos": "*tokens rotary_half",
        "sin": "*tokens rotary_half",
        "k_cache": "blocks block_size kv_heads head_dim",
        "v_cache": "blocks block_size kv_heads head_dim",
        "slots": "*tokens",
    },
    dtypes={
        "cos": "float32",
        "sin": "float32",
        "k_cache": "C",
        "v_cache": "C",
        "slots": "int64",
    },
    writes=("q", "k_cache", "v_cache"),
    choices={"pairing": PAIRINGS, "layout": LAYOUTS},
    moved=[
        ("*tokens heads head_dim", "q"),
        ("*tokens heads head_dim", "q"),
        ("*tokens kv_heads head_dim", "k"),
        ("*tokens kv_heads head_dim", "v"),
        ("*tokens rotary_half", "cos"),
        ("*tokens rotary_half", "sin"),
        ("*tokens", "slots"),
        ("*tokens kv_heads head_dim", "k_cache"),
        ("*tokens kv_heads head_dim", "v_cache"),
    ],
    cases=Cases(
        sizes=(
            {
                "tokens": 7, "heads": 9, "kv_heads": 3, "head_dim": 64, "rotary_half": 32,
                "blocks": 5, "block_size": 16,
            },
            {
                "tokens": 1, "heads": 2, "kv_heads": 1, "head_dim": 80, "rotary_half": 16,
                "blocks": 3, "block_size": 1,
            },
            {
                "tokens": 40, "heads": 4, "kv_heads": 2, "head_dim": 20, "rotary_half": 5,
                "blocks": 7, "block_size": 8,
            },
            {
                "tokens": 0, "heads": 2, "kv_heads": 2, "head_dim": 8, "rotary_half": 4,
                "blocks": 2, "block_size": 4,
            },
        ),
        scalars=({}, {"pairing": "interleaved"}),
        inputs=_inputs,
        composed=_composed,
    ),
    oracle=_oracle,
)  # fmt: skip
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
    """Rotates ``q`` in place, and writes the rotated ``k`` and ``v`` into their slots.

    Sources: arXiv:2104.09864 and arXiv:2309.06180. It is ``rotary_embedding_`` followed by
    ``kv_cache_write``, in one pass over the tokens; only ``k`` itself stays as it was. A token
    with a slot < 0 has its query rotated and is not written. ``q``, ``k`` and ``v`` may be
    strided views of one packed projection.
    """
    turned, keys = rotary_embedding.reference(q, k, cos, sin, pairing)
    kv_cache_write.reference(keys, v, k_cache, v_cache, slots, layout)
    q.copy_(turned)
