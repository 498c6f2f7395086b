"""Wrong attention: each must be killed by the value family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet_conformance.selftest.mutants.attention_loop import Loop
from trivet_conformance.selftest.mutants.variant import variants


def _without_maximum(scores: Tensor, hidden: Tensor) -> Tensor:
    weights = torch.exp(scores).masked_fill(hidden, 0.0)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


@implements("paged_attention@1", name="window_off_by_one")
def window_off_by_one(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    return Loop(window_shift=1)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="heads_dealt_in_turn")
def heads_dealt_in_turn(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    return Loop(interleaved=True)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="soft_cap_ignored")
def soft_cap_ignored(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    return Loop(capped=False)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="sees_one_key_too_many")
def sees_one_key_too_many(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    return Loop(causal_shift=1)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="maximum_not_subtracted")
def maximum_not_subtracted(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    return Loop(softmax=_without_maximum)(*batch, scale, window, soft_cap)


VARIANTS = variants(
    "value",
    (
        window_off_by_one,
        heads_dealt_in_turn,
        soft_cap_ignored,
        sees_one_key_too_many,
        maximum_not_subtracted,
    ),
)
