"""What work on heads before attention gets wrong: norms of heads, and writing keys that turn."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.kv_cache import kv_cache_write
from trivet.catalogue.qk_norm import qk_rms_norm
from trivet.catalogue.rotary import rotary_embedding
from trivet.catalogue.rotary_kv_cache import rotary_kv_cache_write
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import Variant, variants


@implements("qk_rms_norm@1", name="weight_of_the_queries_for_both")
def weight_of_the_queries_for_both(  # noqa: D103
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> list[Tensor]:
    own = None if k_weight is None else q_weight
    scalars = (eps, weight_offset, weight_in_float32)
    found: list[Tensor] = qk_rms_norm.reference(q, k, q_weight, own, *scalars)
    return found


@implements("qk_rms_norm@1", name="all_heads_as_one_row")
def all_heads_as_one_row(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> list[Tensor]:
    """Takes the mean square over a token, as models do that normalise before they split heads."""
    scalars = (eps, weight_offset, weight_in_float32)
    found = []
    for t, weight in ((q, q_weight), (k, k_weight)):
        if t is not None and weight is not None:
            wide, row = weight.repeat(t.shape[-2]), t.flatten(-2).unsqueeze(-2)
            (turned,) = qk_rms_norm.reference(row, None, wide, None, *scalars)
            found.append(turned.reshape(t.shape))
    return found


@implements("rotary_kv_cache_write@1", name="keys_as_they_were")
def keys_as_they_were(  # noqa: D103
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
    kv_cache_write.reference(k, v, k_cache, v_cache, slots, layout)
    q.copy_(rotary_embedding.reference(q, None, cos, sin, pairing)[0])


@implements("rotary_kv_cache_write@1", name="keys_turned_in_place")
def keys_turned_in_place(  # noqa: D103
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
    turned = rotary_embedding.reference(k, None, cos, sin, pairing)[0]
    rotary_kv_cache_write.reference(q, k, v, cos, sin, k_cache, v_cache, slots, pairing, layout)
    k.copy_(turned)


@implements("rotary_kv_cache_write@1", name="queries_of_skipped_tokens_kept")
def queries_of_skipped_tokens_kept(
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
    """Leaves a token at once when it has no slot."""
    before = q.clone()
    rotary_kv_cache_write.reference(q, k, v, cos, sin, k_cache, v_cache, slots, pairing, layout)
    q.copy_(torch.where((slots < 0)[..., None, None], before, q))


@implements("rotary_kv_cache_write@1", name="in_two_steps")
def in_two_steps(
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
    """Turns in float64, then writes."""
    turned, keys = rotary_embedding.reference(q.double(), k.double(), cos, sin, pairing)
    q.copy_(turned)
    kv_cache_write.reference(keys.to(k.dtype), v, k_cache, v_cache, slots, layout)


VARIANTS: tuple[Variant, ...] = (
    *variants(
        "value",
        (
            weight_of_the_queries_for_both,
            all_heads_as_one_row,
            queries_of_skipped_tokens_kept,
        ),
    ),
    *variants("fusion", (keys_as_they_were,)),
    *variants("alias", (keys_turned_in_place,)),
    *variants("", (in_two_steps,)),
)
