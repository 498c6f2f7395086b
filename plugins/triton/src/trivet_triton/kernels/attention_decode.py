"""paged_attention for few queries a sequence: keys in parts, then a second kernel joins them.

The work of a sequence is one pass over its cache, so what counts is bytes in flight. Programs
take (sequence, key head, part of the keys). How many parts there may be follows from integers of
the host alone: sequences, heads, ``max_seq_len`` and multiprocessors. How many there *are* a
program works out from the length on the device, so that a captured graph stays right and a
bound far above the true maximum costs programs that leave at once, no empty parts. A schedule
would add nothing: ``prepare_step`` is not used.

A second launch joins the parts in their order. A counter with which the last program of a
sequence would do so saves that launch, but it is state: two streams, or a graph beside an eager
call, would share it, and a kernel that is aborted leaves it wrong for good.
"""

# ruff: noqa: ANN001, ANN202  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from math import inf
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.kernels.triton import Kernel, Variant
from trivet_triton.constants import Constants, compiler_options
from trivet_triton.hardware import arch_at, architecture, device_at, processors
from trivet_triton.kernels import attention_host as host
from trivet_triton.kernels.attention_tile import (
    mean,
    nothing_seen,
    rows_of_tile,
    walk,
    zero_uncovered,
)
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import named, power_of_two

_MOST_PARTS: Final = 64
_LONGEST_PART: Final = 2048
"""Keys; bounds the time of the last program where lengths differ."""
_CROWD: Final = 16
"""Programs for each that can run at a time, above which keys are not cut further."""
_FILLED: Final = 0.9
"""Share of the best use of the last wave of programs that is enough."""


@triton.jit
def _parts_of(first, length, parts, LEAST: tl.constexpr, BLOCK_N: tl.constexpr):
    """How the keys ``first .. length`` are cut: parts, and keys of each but the last."""
    span = tl.maximum(length - first, 0)
    wanted = tl.maximum(tl.minimum(parts, tl.cdiv(span, LEAST)), 1)
    each = tl.maximum(tl.cdiv(tl.cdiv(span, wanted), BLOCK_N) * BLOCK_N, BLOCK_N)
    return tl.cdiv(span, each), each


@triton.jit
def _attend(
    q, k_cache, v_cache, block_table, query_start, seq_lens,
    out, scratch, q_stride, table_stride, tokens, sequences,
    parts, window, inner, factor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, PIECES: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, PAD: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEAST: tl.constexpr,
    ALONE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, PRECISE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One part of the keys of one sequence, for the query heads of one key head.

    ``ALONE``: no other kernel sees the batch, so rows that no sequence covers are this one's.
    """
    after_previous(OVERLAP)
    share, part = tl.program_id(0), tl.program_id(1)
    s, head = share // (KV_HEADS * PIECES), share // PIECES % KV_HEADS
    piece = share % PIECES
    start, stop = tl.load(query_start + s), tl.load(query_start + s + 1)
    length, count = tl.load(seq_lens + s), stop - start
    if ALONE:  # noqa: SIM102  # constants are decided first
        if part == 0:
            member = head * GROUP + piece * PACK
            zero_uncovered(
                out, s, tokens, sequences, query_start, sequences, member,
                PACK, KV_HEADS * GROUP, HEAD_DIM, PAD,
            )  # fmt: skip
    if (count < 1) | (count > QUERIES):
        return
    least = 0
    if WINDOWED:
        least = tl.maximum(length - count + 1 - window, 0)
    used, each = _parts_of(least, length, parts, LEAST, BLOCK_N)
    if part >= tl.maximum(used, 1):
        return
    token, member, own, valid = rows_of_tile(count, 0, length, piece, GROUP, PACK, BLOCK_M, QUERIES)
    d = tl.arange(0, WIDTH)
    row, member = (start + token).to(tl.int64), head * GROUP + member
    some = valid[:, None] & (d < HEAD_DIM)[None, :]
    place = q + (row * q_stride + member * HEAD_DIM)[:, None] + d[None, :]
    top, total, acc = nothing_seen(BLOCK_M, WIDTH)
    begin = least + part * each
    top, total, acc = walk(
        top, total, acc, tl.load(place, mask=some, other=0.0), k_cache, v_cache,
        block_table + s.to(tl.int64) * table_stride, head, begin,
        tl.minimum(begin + each, length), least, length, own, window, inner, factor,
        PAGE, KV_HEADS, HEAD_DIM, WIDTH, BLOCK_N, True, WINDOWED, CAPPED, PRECISE,
    )  # fmt: skip
    acc = mean(acc, total, (own >= 0) & (used <= 1))
    line = row * (KV_HEADS * GROUP) + member
    if used <= 1:
        to = out + (line * HEAD_DIM)[:, None] + d[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=some)
    else:
        line = line * parts + part
        tl.store(scratch + (line * HEAD_DIM)[:, None] + d[None, :], acc, mask=some)
        sizes = scratch + tokens.to(tl.int64) * (KV_HEADS * GROUP * HEAD_DIM) * parts
        tl.store(sizes + line, top + tl.log2(total) / factor, mask=valid)


@triton.jit
def _join(
    query_start, seq_lens, out, scratch, tokens, parts, window, factor,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    BLOCK_N: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    WINDOWED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Joins the parts of one row of ``out``: weights from their log-sum-exp, in units of scores.

    ``PARTS``: a power of two that no call exceeds; ``CHUNK`` divides it. Lengths are read before
    the kernel before has ended: it waited for whoever wrote them.
    """
    pid = tl.program_id(0)
    s, token, head = pid // (HEADS * QUERIES), pid // HEADS % QUERIES, pid % HEADS
    start, stop = tl.load(query_start + s), tl.load(query_start + s + 1)
    length, count = tl.load(seq_lens + s), stop - start
    after_previous(OVERLAP)
    if (count > QUERIES) | (token >= count):
        return
    least = 0
    if WINDOWED:
        least = tl.maximum(length - count + 1 - window, 0)
    used, _ = _parts_of(least, length, parts, LEAST, BLOCK_N)
    if used <= 1:
        return
    row = (start + token).to(tl.int64) * HEADS + head
    line = row * parts
    sizes = scratch + tokens.to(tl.int64) * (HEADS * HEAD_DIM) * parts + line
    d, c = tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    place = scratch + ((line + c) * HEAD_DIM)[:, None] + d[None, :]
    some = (c < used)[:, None] & (d < HEAD_DIM)[None, :]
    means = tl.load(place, mask=some, other=0.0)  # under way while the sizes are compared
    j = tl.arange(0, PARTS)
    size = tl.load(sizes + j, mask=j < used, other=-float("inf"))
    top = tl.max(size, 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(tl.exp2((size - top) * factor), 0)
    acc = tl.zeros([WIDTH], tl.float32)
    for at in tl.range(0, used, CHUNK):
        here = at + c
        some_sizes = tl.load(sizes + here, mask=here < used, other=-float("inf"))
        weight = tl.exp2((some_sizes - top) * factor)
        acc += tl.sum(weight[:, None] * means, 0)
        place += CHUNK * HEAD_DIM
        some = (here + CHUNK < used)[:, None] & (d < HEAD_DIM)[None, :]
        means = tl.load(place, mask=some, other=0.0)
    acc = acc / total  # a sequence with parts has more keys than queries: each row sees some
    to = out + row * HEAD_DIM + d
    tl.store(to, acc.to(out.dtype.element_ty), mask=d < HEAD_DIM)


ATTEND = Kernel(
    _attend, settle=overlap, q="*T", k_cache="*T", v_cache="*T", block_table="*i32",
    query_start="*i32", seq_lens="*i32", out="*T", scratch="*fp32", q_stride="i64",
    table_stride="i64", tokens="i32", sequences="i32", parts="i32", window="i32", inner="fp32",
    factor="fp32",
)  # fmt: skip
JOIN = Kernel(
    _join, settle=overlap, query_start="*i32", seq_lens="*i32", out="*T", scratch="*fp32",
    tokens="i32", parts="i32", window="i32", factor="fp32",
)  # fmt: skip


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, int]]:
    """Configs worth measuring: ``RESIDENT`` programs of a multiprocessor decide on the parts."""
    del rows
    for block, among in ((16, (1, 2, 4)), (32, (1, 2, 4)), (64, (2, 4)), (128, (4, 8))):
        for warps in among:
            for stages in (2, 3, 4):
                kept = (stages - 1) * 2 * block * host.row_bytes(key) >> 10
                for resident in (1, 2, 4, 8):
                    if 32 <= kept * resident <= key["shared"]:
                        yield {
                            "BLOCK_N": block,
                            "LEAST": max(block, 128),
                            "RESIDENT": resident,
                            "num_warps": warps,
                            "num_stages": stages,
                        }


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """Two programs of a multiprocessor, each with as much in flight as the memory allows."""
    block = 16 if key["dtype"] == "float32" else 64 if key["head_dim"] <= 128 else 32
    tile = 2 * block * host.row_bytes(key) >> 10
    stages = max(2, min(3, 1 + key["shared"] // 2 // (tile + 2)))
    config = {"BLOCK_N": block, "LEAST": 128, "RESIDENT": 2}
    return ((inf, {**config, "num_warps": 4, "num_stages": stages}),)


def most_rows(dtype: torch.dtype) -> int:
    """Rows of a tile; a batch with more queries a sequence goes to the kernel for prefill."""
    return 16 if dtype is torch.float32 else 64


def fitted(config: Mapping[str, int], shape: host.Shape, queries: int, arch: str) -> dict[str, int]:
    """The config for tiles of 64 rows, too, which need more warps' registers on some."""
    rows = shape.pieces(most_rows(shape.dtype))[1] * queries
    least = architecture(arch).tall_tiles
    if rows <= 32 or not least:
        return dict(config)
    warps = max(least.get("num_warps", 0), config["num_warps"])
    return {**config, **least, "num_warps": warps}


TUNED = Constants("paged_attention_decode", space=space, default=default)


def attend_variant(
    shape: host.Shape, queries: int, config: Mapping[str, int], *, alone: bool
) -> Variant:
    """The kernel that attends to one part."""
    pieces, pack = shape.pieces(most_rows(shape.dtype))
    return ATTEND.variant(
        {"T": shape.dtype},
        {
            **shape.constants(pack, pieces),
            "QUERIES": queries,
            "BLOCK_M": max(16, power_of_two(pack * queries)),
            "BLOCK_N": config["BLOCK_N"],
            "LEAST": config["LEAST"],
            "ALONE": alone,
        },
        divisible=shape.promises,
        **compiler_options(config),
    )


def join_variant(shape: host.Shape, queries: int, config: Mapping[str, int]) -> Variant:
    """The kernel that joins parts."""
    return JOIN.variant(
        {"T": shape.dtype},
        {
            "HEADS": shape.heads,
            "HEAD_DIM": shape.head_dim,
            "WIDTH": shape.width,
            "QUERIES": queries,
            "BLOCK_N": config["BLOCK_N"],
            "LEAST": config["LEAST"],
            "PARTS": _MOST_PARTS,
            "CHUNK": min(_MOST_PARTS, 8192 // shape.width),
            "WINDOWED": shape.windowed,
        },
        divisible={"out": 16, "scratch": 16},
        num_warps=4,
        num_stages=1,
    )


class Ready(NamedTuple):
    """Launches of one config; ``slots`` programs run at a time."""

    attend: Any
    join: Any
    shares: int
    least: int
    slots: int
    queries: int
    heads: int
    head_dim: int
    unused: Tensor


@cache
def _ready(shape: host.Shape, queries: int, alone: bool) -> tuple[tuple[float, Ready], ...]:
    on, arch, made = device_at(shape.ordinal), arch_at(shape.ordinal), []
    for limit, found in TUNED.buckets(arch, shape.key(arch)):
        config = fitted(found, shape, queries, arch)
        attend = attend_variant(shape, queries, config, alone=alone).on(on)
        join = join_variant(shape, queries, config).on(on)
        shares = shape.kv_heads * shape.pieces(most_rows(shape.dtype))[0]
        slots = config["RESIDENT"] * processors(shape.ordinal)
        sizes = queries, shape.heads, shape.head_dim
        unused = host.unused(shape.ordinal)
        made.append((limit, Ready(attend, join, shares, config["LEAST"], slots, *sizes, unused)))
    return tuple(made)


@lru_cache(4096)
def parts_at_most(programs: int, span: int, slots: int, least: int) -> int:
    """Into how many parts keys are cut at most, so that the last wave of programs is full.

    Args:
        programs: of a launch with one part.
        span: most keys that a sequence has.
        slots: programs that run at a time.
        least: keys below which nothing is cut.
    """
    most = max(1, min(_MOST_PARTS, -(-span // least)))
    full = max(1, slots // programs)
    wanted = max(full, min(-(-span // _LONGEST_PART), _CROWD * slots // programs))

    def filled(parts: int) -> float:
        waves = parts * programs / slots
        return waves / -(-parts * programs // slots)

    best = max(map(filled, range(wanted, wanted + 4)))
    if programs < slots:  # few programs: one wave, or little more, is best
        wanted = next(n for n in range(max(1, wanted), wanted + 4) if filled(n) >= _FILLED * best)
    return min(most, wanted)


def decode(call: host.Call, queries: int, *, alone: bool) -> None:
    """Attends for the sequences with 1 to ``queries`` queries, a power of two."""
    in_parts(
        _ready(call.shape, queries, alone), *call.tensors, call.q_stride,
        call.block_table.stride(0), call.tokens, call.sequences, call.longest, call.window,
        call.inner, call.factor,
    )  # fmt: skip


def one_query(shape: host.Shape) -> tuple[tuple[float, Ready], ...]:
    """Launches for batches of one query a sequence."""
    return _ready(shape, 1, True)


def in_parts(
    launches: tuple[tuple[float, Ready], ...],
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, query_start: Tensor,
    seq_lens: Tensor, out: Tensor, q_stride: int, table_stride: int, tokens: int,
    sequences: int, longest: int, window: int,
    inner: float, factor: float,
) -> None:  # fmt: skip
    """Launches for a batch: over parts of the keys, and to join them where there are several."""
    for limit, ready in launches:  # noqa: B007  # the last one holds
        if sequences <= limit:
            break
    attend, join, shares, least, slots, queries, heads, head_dim, scratch = ready
    span = min(longest, window + queries) if window else longest
    programs = sequences * shares
    parts = parts_at_most(programs, span, slots, least)
    if parts > 1:
        size = tokens * heads * parts * (head_dim + 1)
        scratch = torch.empty(size, dtype=torch.float32, device=q.device)
    attend(
        programs, parts, 1, q, k_cache, v_cache, block_table, query_start, seq_lens, out, scratch,
        q_stride, table_stride, tokens, sequences, parts, window, inner, factor,
    )  # fmt: skip
    if parts > 1:
        join(
            sequences * queries * heads, 1, 1, query_start, seq_lens, out, scratch, tokens, parts,
            window, factor,
        )  # fmt: skip


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time."""
    for dtype, group, head_dim, queries in (
        (torch.bfloat16, 4, 128, 1),
        (torch.bfloat16, 8, 128, 1),
        (torch.bfloat16, 8, 128, 8),
        (torch.float16, 7, 64, 1),
        (torch.bfloat16, 1, 80, 1),
        (torch.bfloat16, 16, 192, 1),
        (torch.bfloat16, 2, 256, 1),
        (torch.bfloat16, 64, 256, 1),
        (torch.float32, 4, 128, 1),
        (torch.float32, 64, 256, 1),
    ):
        for windowed, capped in ((False, False), (True, True)):
            shape = host.Shape(0, dtype, 8, group, head_dim, 16, windowed, capped)
            name = f"{named(dtype)}/{head_dim}/{group}/{queries}"
            name += "/window" * windowed + "/cap" * capped
            for _, found in TUNED.defaults(arch, shape.key(arch)):
                config = fitted(found, shape, queries, arch)
                yield f"decode/{name}", attend_variant(shape, queries, config, alone=True)
                if not capped:
                    yield f"decode/join/{name}", join_variant(shape, queries, config)
