"""paged_attention for one query a sequence: what a call does on the host, and its sites.

A batch of another kind, or with tensors that are laid out unlike an engine's, goes the long way
through ``attention_host.opened``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from trivet_triton.kernels import attention_host as host
from trivet_triton.kernels.attention_decode import in_parts, one_query
from trivet_triton.kernels.sites import Launches, Site, at_bind


@cache
def decoder(
    element: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page: int,
    scale: float,
    window: int,
    soft_cap: float,
    dense: bool | None = None,
    sure: bool = False,
) -> Callable[..., Tensor | None]:
    """Attends into ``out`` or a fresh tensor; None for a batch that goes the long way.

    ``dense`` says whether the tables are known to be contiguous, None where there was no bind;
    ``sure`` whether q and the caches are known to start at multiples of 16 bytes.
    """
    group = heads // kv_heads
    kind = element, kv_heads, group, head_dim, page, 0 < window < host.ENDLESS, soft_cap > 0
    launches = Launches(lambda index: one_query(host.Shape(index, *kind)))
    if dense is not None and scale > 0:
        launches.at_home()
    kept = window if window < host.ENDLESS else 0
    inner, factor = host.scales_of(scale, soft_cap)
    usual = 3 if scale > 0 else -1  # dims of q
    width = heads * head_dim

    def run(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, query_start: Tensor,
        seq_lens: Tensor, max_seq_len: int, out: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        strides, keys = q.stride(), k_cache.data_ptr()  # no address: no block
        sequences, table_stride = block_table.shape
        longest = table_stride * page
        if max_seq_len < longest:  # noqa: PLR1730  # min is a call more
            longest = max_seq_len
        if not (
            dense
            or (
                block_table.is_contiguous()
                and query_start.is_contiguous()
                and seq_lens.is_contiguous()
            )
        ):
            return None
        tokens = q.numel() // width
        if len(strides) != usual or not (keys and tokens and sequences and longest > 0):
            return None
        q_stride = strides[0]
        if q_stride & 7 or not (sure or not (q.data_ptr() | keys | v_cache.data_ptr()) & 15):
            return None
        if out is None:
            out = q.new_empty(tokens, heads, head_dim)
        in_parts(
            launches[q.get_device()], q, k_cache, v_cache, block_table, query_start, seq_lens, out,
            q_stride, table_stride, tokens, sequences, longest, kept, inner, factor,
        )  # fmt: skip
        return out

    return run


def one_each(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, query_start: Tensor,
    seq_lens: Tensor, max_seq_len: int, scale: float, window: int, soft_cap: float, layout: str,
    out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """The same without a bind, verified."""
    host.check(q, k_cache, v_cache, block_table, query_start, seq_lens, layout, out)
    _, page, kv_heads, head_dim = k_cache.shape
    run = decoder(q.dtype, q.shape[-2], kv_heads, head_dim, page, scale, window, soft_cap)
    return run(q, k_cache, v_cache, block_table, query_start, seq_lens, max_seq_len, out)


def site(whole: Site, *kind: Any) -> Site:
    """The function of a site: batches of one query a sequence at once, others by ``whole``."""
    *sizes, layout, dense, sure = kind
    if layout != "NHD":
        host.refuse(f"layout {layout}")
    run = decoder(*sizes, dense, sure)

    def paged_attention(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, query_start: Tensor,
        seq_lens: Tensor, max_query_len: int, max_seq_len: int, scale: float,
        schedule: list[Tensor], window: int = 0, soft_cap: float = 0.0, layout: str = "NHD",
    ) -> Any:  # fmt: skip
        if max_query_len == 1:
            y = run(q, k_cache, v_cache, block_table, query_start, seq_lens, max_seq_len)
            if y is not None:
                return y
        return whole(
            q, k_cache, v_cache, block_table, query_start, seq_lens, max_query_len, max_seq_len,
            scale, schedule, window, soft_cap, layout,
        )  # fmt: skip

    return paged_attention


PATHS: Final = (
    "q.dtype", "heads", "kv_heads", "head_dim", "block_size", "scale", "window", "soft_cap",
    "layout",
)  # fmt: skip
TABLES: Final = ("block_table", "query_start", "seq_lens")
STARTS: Final = ("q", "k_cache", "v_cache")


def at_bind_of(whole: Callable[[], Site]) -> Site:
    """The hook ``resolve`` of an operator that serves every batch; it is not made yet."""
    return at_bind(lambda *kind: site(whole(), *kind), *PATHS, dense=TABLES, aligned=STARTS)
