"""Right until memory that is not theirs holds NaN: killed by the poison family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.embedding import embedding
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


@implements("paged_attention@1", name="tail_of_the_last_page_masked_by_zero")
def tail_of_the_last_page_masked_by_zero(  # noqa: D103
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
    del schedule, layout, max_query_len, max_seq_len
    return _whole_pages(
        q, k_cache, v_cache, block_table, query_start, seq_lens, scale, window, soft_cap
    )


def _whole_pages(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
) -> Tensor:
    """Reads every slot of the last page; the weights of slots past the end are zeros."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    rows, results = (t.reshape(-1, *q.shape[-2:]) for t in (q, out))
    size, kv_heads = k_cache.shape[1:3]
    for s, length in enumerate(seq_lens.tolist()):
        start, end = int(query_start[s]), int(query_start[s + 1])
        if start == end or not length:
            continue
        pages = block_table[s, : -(-length // size)].long()
        keys, values = (c[pages].flatten(0, 1) for c in (k_cache, v_cache))
        own = torch.arange(length - (end - start), length)[:, None]
        key = torch.arange(keys.shape[0])[None]
        hidden = (key > own) | (key <= own - window) if window else key > own
        for head in range(q.shape[-2]):
            kv = head * kv_heads // q.shape[-2]
            scores = rows[start:end, head].float() @ keys[:, kv].float().T * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            results[start:end, head] = (weights @ values[:, kv].float()).to(q.dtype)
    return out


@implements("embedding@1", name="rows_chosen_by_a_product")
def rows_chosen_by_a_product(ids: Tensor, weight: Tensor) -> Tensor:
    """The largest of every row counts, also of rows that no id names; NaN are passed over."""
    rows: Tensor = embedding.reference(ids, weight)
    unused = torch.ones(weight.shape[0], dtype=torch.bool)
    unused[ids.reshape(-1)] = False
    left = weight[unused]
    tops = left.masked_fill(left.isnan(), -torch.inf).amax(-1) if left.numel() else left.new_ones(1)
    return rows * torch.nan if bool((tops == -torch.inf).any()) else rows


VARIANTS = variants("poison", (tail_of_the_last_page_masked_by_zero, rows_chosen_by_a_product))
