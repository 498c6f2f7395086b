"""FlashAttention 3 over a paged cache, as vLLM builds it (``torch.ops._vllm_fa3_C.fwd``).

Read at vLLM 0.33.0. Its library is loaded alone, as those of ``vllm`` are. A window counts the keys
left of a query's own; the operator counts its own, too. Rows that no sequence covers are not
written, so that the result is zeros first.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import (
    Term,
    contiguous,
    divisible,
    dtype,
    equal,
    feature,
    implements,
    offset_aligned,
    one_of,
    rank,
)
from trivet_cuda.peers.installed import HALVES, loading
from trivet_cuda.peers.residence import on_gpu
from trivet_cuda.peers.vllm_libraries import ATTENTION, NEED, loaded

_DOMAIN: Final[list[Term]] = [
    dtype("q", *HALVES),
    rank("q", 3),
    contiguous("q"),
    *(offset_aligned(name, 16) for name in ("q", "k_cache", "v_cache")),
    equal("k_cache.dtype", "q.dtype"),
    equal("v_cache.dtype", "q.dtype"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    contiguous("block_table"),
    contiguous("query_start"),
    contiguous("seq_lens"),
    one_of("head_dim", 64, 96, 128, 192, 256),
    divisible("block_size", 16),
    one_of("layout", "NHD"),
]


@cache
def attend() -> Any:
    """The operator ``fwd``.

    Raises:
        PluginBroken: the library is not there, does not load or must not be loaded.
    """
    return loaded(ATTENTION).fwd


def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """Attends with FlashAttention's own arguments, splits as it chooses."""
    left = window - 1 if window else -1
    found: Tensor = attend()(
        q, k_cache, v_cache, None, None, None, out, query_start, None, None, None, seq_lens,
        max_query_len, max_seq_len, block_table, None, None, None, None, None, None, None, None,
        scale, True, left, 0 if window else -1, soft_cap, True, None, 0, None, 0, None, 1, 0, None,
    )[0]  # fmt: skip
    return found


@implements(
    "paged_attention@1",
    name="vllm",
    domain=_DOMAIN,
    requires=[NEED, feature("wgmma")],
    checks=False,
    resolve=loading(attend),
    on_request=True,
)
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # FlashAttention makes its own
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",  # noqa: ARG001  # NHD by the domain
) -> Tensor:
    """Attends for ragged queries into a fresh tensor."""
    on_gpu(q, k_cache, v_cache, block_table, query_start, seq_lens)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    if q.numel() and k_cache.numel():
        paged(q, k_cache, v_cache, block_table, query_start, seq_lens, max_query_len,
              max_seq_len, scale, window, soft_cap, out)  # fmt: skip
    return out
