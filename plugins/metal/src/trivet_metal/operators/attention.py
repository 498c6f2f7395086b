"""paged_attention: single rows for few queries, tiles of rows for many, both for a mixed batch."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import SIMD, row_stride

WIDTHS: Final = (32, 64, 96, 128, 192, 256)
"""Features of a head that kernels are made for; each has a file of its own."""

WIDEST: Final = WIDTHS[-1]
SPLITS: Final = 8
"""Simdgroups that share the keys of a row out, as the kernels have it."""

ENDLESS: Final = 1 << 30
"""A window that hides nothing; positions are 32-bit integers."""

_SOURCES: Final = (
    "../kernels/instances.h",
    "../kernels/attention.h",
    "../kernels/attention_kernels.h",
    *(f"../kernels/attention_{width}.metal" for width in WIDTHS),
)
_TILE_BYTES: Final = 512
"""Bytes of a row above which a tile has 16 rows rather than 32."""

_FEW_ROWS: Final = 8
"""Rows of a key head up to which each is taken by itself: a tile would be a quarter full."""

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k_cache.dtype", "q.dtype"),
    equal("v_cache.dtype", "q.dtype"),
    between("head_dim", 1, WIDEST),
    rows("q"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    contiguous("query_start"),
    contiguous("seq_lens"),
    one_of("layout", "NHD"),
]


def _arguments(out: str) -> tuple[str, ...]:
    caches = ("k_cache: in T*", "v_cache: in T*", "block_table: in int*")
    tables = ("query_start: in int*", "seq_lens: in int*", f"out: {out} T*")
    counts = ("tokens", "sequences", "heads", "kv_heads", "head_dim", "page", "window", "few")
    numbers = ("q_token: int64", "table_row: int64", *(f"{n}: int32" for n in counts))
    return "q: in T*", *caches, *tables, *numbers, "scale: float", "soft_cap: float"


class _Kernels(NamedTuple):
    every_row: Package
    few_rows: Package
    tiles: Package


def file_for(width: int) -> str:
    """The file with kernels for heads of so many features."""
    return f"attention_{next(w for w in WIDTHS if w >= width)}.metal"


KERNELS: Final = {
    width: _Kernels(
        Package(file_for(width), "paged_vector_{T}", _arguments("out")),
        Package(file_for(width), "paged_vector_{T}", _arguments("into")),
        Package(file_for(width), "paged_tile_{T}", _arguments("into")),
    )
    for width in WIDTHS
}


def simdgroups_of(width: int, itemsize: int) -> int:
    """Simdgroups of a tile, each with eight rows; as the kernels have it."""
    return 2 if width * itemsize > _TILE_BYTES else 4


def width_of(head_dim: int) -> int:
    """The least width that a head fits into.

    Raises:
        DomainError: no kernel is so wide.
    """
    for width in WIDTHS:
        if 0 < head_dim <= width:
            return width
    msg = f"attention: heads have {head_dim} features"
    raise DomainError(msg, fix=f"1 to {WIDEST}: bind the operator, it takes another implementation")


class _Call(NamedTuple):
    """A call as the kernels take it, less what its kernel decides."""

    tensors: tuple[Tensor, ...]
    steps: tuple[int, ...]
    factors: tuple[float, float]

    @property
    def tokens(self) -> int:
        return self.steps[2]

    @property
    def sequences(self) -> int:
        return self.steps[3]

    @property
    def heads(self) -> int:
        return self.steps[4]

    @property
    def kv_heads(self) -> int:
        return self.steps[5]

    @property
    def head_dim(self) -> int:
        return self.steps[6]


def _opened(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: tuple[Tensor, Tensor, Tensor],
    scalars: tuple[float, int, float, str], out: Tensor,
) -> _Call:  # fmt: skip
    """The call, verified as far as addresses depend on it.

    Raises:
        DomainError: its shapes do not fit together, or its layout is another one.
    """
    scale, window, soft_cap, layout = scalars
    table, query_start, seq_lens = tables
    (heads, head_dim), (_, page, kv_heads, _) = q.shape[-2:], k_cache.shape
    if layout != "NHD" or k_cache.shape != v_cache.shape or k_cache.shape[3] != head_dim:
        shapes = ", ".join(str(list(t.shape)) for t in (q, k_cache, v_cache))
        msg = f"paged_attention: layout {layout}, q, k_cache, v_cache of {shapes}"
        raise DomainError(msg, fix="layout NHD, [blocks block_size kv_heads head_dim]")
    if not kv_heads or heads % kv_heads:
        msg = f"paged_attention: {heads} heads on {kv_heads}"
        raise DomainError(msg, fix="kv_heads must divide heads")
    if table.stride(-1) != 1:
        table = table.contiguous()
    tokens = q.numel() // max(1, heads * head_dim)
    steps = (
        row_stride(q, 2), table.stride(0), tokens, seq_lens.shape[0], heads, kv_heads, head_dim,
        page, min(window, ENDLESS),
    )  # fmt: skip
    tensors = (q, k_cache, v_cache, table, query_start, seq_lens, out)
    return _Call(tensors, steps, (scale, abs(soft_cap)))


def _each_row(call: _Call) -> None:
    """Every row by itself; rows that no sequence covers are zeros."""
    kernel = KERNELS[width_of(call.head_dim)].every_row.at(T=call.tensors[0].dtype)
    size = SPLITS * SIMD
    kernel(
        *call.tensors, *call.steps, 0, *call.factors,
        threads=(call.heads * size, call.tokens, 1), group=(size, 1, 1),
    )  # fmt: skip


def _tiles(call: _Call, few: int) -> None:
    """Tiles for sequences with more queries than ``few``; the others' rows by themselves."""
    width, element = width_of(call.head_dim), call.tensors[0].dtype
    kernels, simdgroups = KERNELS[width], simdgroups_of(width, element.itemsize)
    size, group = simdgroups * SIMD, call.heads // call.kv_heads
    count = call.tokens * group // (simdgroups * 8) + call.sequences + 2
    kernels.tiles.at(T=element)(
        *call.tensors, *call.steps, few, *call.factors,
        threads=(count * size, call.kv_heads, 1), group=(size, 1, 1),
    )  # fmt: skip
    if not few:
        return
    size = SPLITS * SIMD
    kernels.few_rows.at(T=element)(
        *call.tensors, *call.steps, few, *call.factors,
        threads=(call.heads * size, call.sequences, few), group=(size, 1, 1),
    )  # fmt: skip


def _attend(call: _Call, max_query_len: int) -> None:
    out = call.tensors[-1]
    if not out.numel():
        return
    if not call.sequences or not call.tensors[3].shape[1] or not len(call.tensors[1]):
        out.zero_()
        return
    few = max(1, _FEW_ROWS // (call.heads // call.kv_heads))
    if max_query_len <= few:
        _each_row(call)
    else:
        _tiles(call, few if call.sequences > 1 else 0)


@implements(
    "paged_attention@1",
    name="metal",
    domain=_DOMAIN,
    sources=_SOURCES,
    deterministic=True,
    checks=False,
)
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,  # noqa: ARG001  # lengths on the device say it exactly
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles follow from lengths on the device
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    """Attends into a fresh tensor."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables = block_table, query_start, seq_lens
    scalars = scale, window, soft_cap, layout
    _attend(_opened(q, k_cache, v_cache, tables, scalars, out), max_query_len)
    return out


@implements(
    "paged_attention_out@1",
    name="metal",
    domain=[*_DOMAIN, contiguous("out")],
    sources=_SOURCES,
    deterministic=True,
    checks=False,
)
def paged_attention_out(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,  # noqa: ARG001  # lengths on the device say it exactly
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles follow from lengths on the device
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
    *,
    out: Tensor,
) -> None:
    """Attends into ``out``."""
    tables = block_table, query_start, seq_lens
    scalars = scale, window, soft_cap, layout
    _attend(_opened(q, k_cache, v_cache, tables, scalars, out), max_query_len)


@implements(
    "paged_attention@1",
    name="metal_invariant",
    domain=_DOMAIN,
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def paged_attention_invariant(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,  # noqa: ARG001  # a row must not depend on it
    max_seq_len: int,  # noqa: ARG001
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    """Attends into a fresh tensor, each row by itself, so that its bits are those of no batch."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables = block_table, query_start, seq_lens
    scalars = scale, window, soft_cap, layout
    _attend(_opened(q, k_cache, v_cache, tables, scalars, out), 1)
    return out
