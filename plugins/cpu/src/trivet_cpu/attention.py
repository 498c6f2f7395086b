"""paged_attention: tiles of queries over pages, softmax computed online in float32."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, equal, implements, one_of, rows
from trivet_cpu._library import op, refuse, refuse_layout, sources

_SOURCES: Final = sources("attention.h", "attention_op.h")
_attention = op("paged_attention")
_attention_out = op("paged_attention_out")

_DOMAIN: Final[list[Term]] = [
    dtype("q", "float32", "bfloat16"),
    equal("k_cache.dtype", "q.dtype"),
    equal("v_cache.dtype", "q.dtype"),
    rows("q"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    one_of("layout", "NHD"),
]


@implements(
    "paged_attention@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
)
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,  # noqa: ARG001  # the tables on the host say it exactly
    max_seq_len: int,  # noqa: ARG001
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles are cut at each call
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    """Attends into a fresh tensor; tables are read by the host and verified."""
    if layout != "NHD":
        refuse_layout(layout)
    try:
        result: Tensor = _attention(
            q, k_cache, v_cache, block_table, query_start, seq_lens, scale, window, soft_cap
        )
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "paged_attention_out@1",
    name="vec",
    domain=[*_DOMAIN, contiguous("out")],
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
)
def paged_attention_out(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,  # noqa: ARG001  # the tables on the host say it exactly
    max_seq_len: int,  # noqa: ARG001
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles are cut at each call
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
    *,
    out: Tensor,
) -> None:
    """Attends into ``out``."""
    if layout != "NHD":
        refuse_layout(layout)
    try:
        _attention_out(
            q, k_cache, v_cache, block_table, query_start, seq_lens, scale, window, soft_cap, out
        )
    except RuntimeError as error:
        refuse(error)
