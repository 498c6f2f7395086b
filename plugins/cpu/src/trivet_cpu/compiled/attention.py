"""paged_attention and attention: tiles of queries over pages, softmax online in float32."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, absent, contiguous, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import BIND, op, refuse, refuse_layout, sources

_SOURCES: Final = sources("attention.h", "attention_op.h")
_attention = op("paged_attention")
_attention_out = op("paged_attention_out")
_dense = op("attention")

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
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
    graph_safe=True,
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
    graph_safe=True,
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


def _rows(t: Tensor) -> Tensor:
    """The tensor with dense rows of a head; tokens and heads may lie as they like."""
    return t if t.stride(-1) == 1 else t.contiguous()


@implements(
    "attention@1",
    name="vec",
    domain=[dtype("q", *FLOATS), absent("mask"), equal("value_dim", "head_dim")],
    sources=sources("attention.h", "attention_op.h", "dense_attention_op.h"),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attends densely into a fresh tensor: keys and values are one page a sequence."""
    if mask is not None:
        msg = "attention: the tiles take no mask"
        raise DomainError(msg, operator="attention", fix=BIND)
    batch, queries = q.shape[:2]
    if batch > 1 and q.stride(0) != queries * q.stride(1):  # tokens of all sequences in one run
        q = q.contiguous()
    try:
        result: Tensor = _dense(_rows(q), _rows(k), _rows(v), scale, causal, window, soft_cap)
    except RuntimeError as error:
        refuse(error)
    return result
