"""Right by value, but not in the same bits in every batch: killed by the metamorphic family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.attention import paged_attention
from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


@implements(
    "rms_norm@1", name="small_batches_summed_wide", deterministic=True, batch_invariant=True
)
def small_batches_summed_wide(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """A batch of a few rows is summed in another way, although batch invariance is declared."""
    if x.numel() > 3 * x.shape[-1]:
        y: Tensor = rms_norm.reference(
            x, weight, eps, weight_offset, weight_in_float32, variance_size
        )
        return y
    wide = rms_norm.reference(
        x.double(), weight.double(), eps, weight_offset, weight_in_float32, variance_size
    )
    return torch.as_tensor(wide).to(x.dtype)


@implements(
    "paged_attention@1", name="physical_pages_decide_bits", deterministic=True, batch_invariant=True
)
def physical_pages_decide_bits(
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
    """Sums wide where the first page lies in the upper half of the cache."""
    pages = k_cache.shape[0]
    upper = bool(block_table.numel()) and 2 * int(block_table[0, 0]) >= pages
    rest = (block_table, query_start, seq_lens, max_query_len, max_seq_len, scale, schedule)
    scalars = (window, soft_cap, layout)
    if upper:
        wide = (q.double(), k_cache.double(), v_cache.double())
        return torch.as_tensor(paged_attention.reference(*wide, *rest, *scalars)).to(q.dtype)
    return torch.as_tensor(paged_attention.reference(q, k_cache, v_cache, *rest, *scalars))


VARIANTS = variants("metamorphic", (small_batches_summed_wide, physical_pages_decide_bits))
