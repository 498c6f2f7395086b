"""Legal attention: other orders of summation, other roundings inside; all accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet_conformance.selftest.mutants.attention_loop import Loop, in_base_two
from trivet_conformance.selftest.mutants.variant import variants

BLOCK = 5
"""Keys a step of the online softmax; small, so that tests take several steps."""


def _in_float64(weights: Tensor, values: Tensor) -> Tensor:
    return weights.double() @ values.double()


def _in_blocks(weights: Tensor, values: Tensor) -> Tensor:
    """Sums over blocks of keys, one after the other."""
    total = torch.zeros(weights.shape[0], values.shape[1])
    for start in range(0, values.shape[0], BLOCK):
        total += weights[:, start : start + BLOCK] @ values[start : start + BLOCK]
    return total


def _block_lengths(
    facts: Mapping[str, Any],
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    out: list[Tensor] | None = None,
) -> list[Tensor]:
    """A schedule: the keys of each sequence, as the kernel wants them."""
    del facts, block_table, query_start, max_query_len, max_seq_len
    lengths = seq_lens.long() + 1
    if out is None:
        return [lengths]
    out[0].copy_(lengths)
    return out


@implements("paged_attention@1", name="softmax_in_base_two")
def softmax_in_base_two(  # noqa: D103
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
    return Loop(softmax=in_base_two)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="values_in_float64")
def values_in_float64(  # noqa: D103
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
    return Loop(mix=_in_float64)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="values_in_blocks")
def values_in_blocks(  # noqa: D103
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
    return Loop(mix=_in_blocks)(*batch, scale, window, soft_cap)


@implements("paged_attention@1", name="with_a_schedule", prepare_step=_block_lengths)
def with_a_schedule(  # noqa: D103
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
    del max_query_len, max_seq_len, layout
    lengths = (schedule[0] - 1).int() if schedule else seq_lens
    batch = (q, k_cache, v_cache, block_table, query_start, lengths)
    return Loop()(*batch, scale, window, soft_cap)


VARIANTS = variants(
    "",
    (
        softmax_in_base_two,
        values_in_float64,
        values_in_blocks,
        with_a_schedule,
    ),
)
