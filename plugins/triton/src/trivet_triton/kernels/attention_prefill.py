"""paged_attention for many queries a sequence, and for batches that mix them with decode.

The grid is flat over tiles of queries of all sequences. A bound of their number follows from
integers of the host (tokens, sequences), so that a call can be captured; a program finds its
sequence by bisection of ``query_start``. The last tile of a sequence has the most keys and starts
first. Keys that every row of a tile sees go through a loop that compares nothing.

A mixed batch is two launches over the same tables: this kernel leaves sequences of one query to
that of decode, whose programs are many and short, and which leaves all others to this one. One
kernel for both would either cut its tiles for a single row or walk a long cache in one program.

Where the tiles are too few for the device, as for a short chunk behind a long prefix, the keys
are cut at multiples of ``split`` and a second kernel merges the parts in order of position. The
batch invariant implementation cuts at fixed positions always, in the grid or, with the very same
arithmetic, within one program.
"""

# ruff: noqa: ANN001, ANN202  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from typing import Any, Final

import torch
import triton
import triton.language as tl

from trivet.kernels.triton import Kernel, Variant
from trivet_triton.constants import Constants, compiler_options
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels import attention_host as host
from trivet_triton.kernels.attention_tile import (
    mean,
    merged,
    nothing_seen,
    rows_of_tile,
    walk,
    zero_uncovered,
)
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import named

WHOLE: Final = 0
"""A program goes over all keys of its tile."""
IN_TURN: Final = 1
"""It does so part by part and merges them."""
IN_GRID: Final = 2
"""A program takes one part; ``MERGE`` follows."""


@triton.jit
def _sequence_of(target, query_start, sequences, TILE: tl.constexpr, ROOM: tl.constexpr):
    """The last sequence whose tiles, or whose tokens if ``ROOM`` is 0, start at ``target``.

    Sequence ``s`` has the tiles from ``query_start[s] // TILE + s``: room for all that it can
    need, wherever the sequences before it end. -1: none.
    """
    low, high = 0, sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TILE + middle * ROOM <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _tile_at(tile, query_start, seq_lens, sequences, TILE: tl.constexpr):
    """A tile's sequence, where it starts, its queries and keys, and the tile's first query."""
    s = tl.maximum(_sequence_of(tile, query_start, sequences, TILE, 1), 0)
    start, stop = tl.load(query_start + s), tl.load(query_start + s + 1)
    return s, start, stop - start, tl.load(seq_lens + s), (tile - start // TILE - s) * TILE


@triton.jit
def _keys_of(
    own, length, window, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr
):
    """Keys of a tile whose first token is at ``own``.

    Where its tiles of keys begin, where those end that every row sees, where all end, and the
    first key that any row sees.
    """
    end = tl.maximum(tl.minimum(own + BLOCK_Q, length), 0)
    full = tl.maximum(own + 1, 0) // BLOCK_N * BLOCK_N
    least = 0
    if WINDOWED:
        least = tl.maximum(own + 1 - window, 0)
    return least // BLOCK_N * BLOCK_N, full, end, least


@triton.jit
def _span(
    q, k_cache, v_cache, table, head, begin, full, end, least, length, own, window, inner, factor,
    PAGE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """The state over the keys ``begin .. end``; those before ``full`` are seen by every row."""
    top, total, acc = nothing_seen(BLOCK_M, WIDTH)
    if not WINDOWED:
        full = tl.minimum(tl.maximum(full, begin), tl.cdiv(end, BLOCK_N) * BLOCK_N)
        top, total, acc = walk(
            top, total, acc, q, k_cache, v_cache, table, head, begin, full, least, length, own,
            window, inner, factor, PAGE, KV_HEADS, HEAD_DIM, WIDTH, BLOCK_N, False, False, CAPPED,
            PRECISE,
        )  # fmt: skip
        begin = full
    return walk(
        top, total, acc, q, k_cache, v_cache, table, head, begin, end, least, length, own,
        window, inner, factor, PAGE, KV_HEADS, HEAD_DIM, WIDTH, BLOCK_N, True, WINDOWED, CAPPED,
        PRECISE,
    )  # fmt: skip


@triton.jit
def _in_turn(
    q, k_cache, v_cache, table, head, begin, full, end, least, length, own, window, inner, factor,
    split,
    PAGE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """The same, in parts that end at multiples of ``split``, merged in order."""
    top, total, acc = nothing_seen(BLOCK_M, WIDTH)
    for at in tl.range(begin // split * split, end, split):
        top_b, total_b, acc_b = _span(
            q, k_cache, v_cache, table, head, tl.maximum(at, begin), full,
            tl.minimum(at + split, end), least, length, own, window, inner, factor,
            PAGE, KV_HEADS, HEAD_DIM, WIDTH, BLOCK_M, BLOCK_N, WINDOWED, CAPPED, PRECISE,
        )  # fmt: skip
        top, total, acc = merged(top, total, acc, top_b, total_b, acc_b, factor)
    return top, total, acc


@triton.jit
def _tiles(
    q, k_cache, v_cache, block_table, query_start, seq_lens, out, scratch, q_stride, table_stride,
    tokens, sequences, tiles, split, parts, window, inner, factor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, PIECES: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr, FROM: tl.constexpr,
    MODE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    PRECISE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence; sequences of fewer than ``FROM`` are left out."""
    after_previous(OVERLAP)
    share, part = tl.program_id(0), tl.program_id(1)
    tile = tiles - 1 - share // (KV_HEADS * PIECES)
    head, piece = share // PIECES % KV_HEADS, share % PIECES
    if part == 0:
        first = tile * BLOCK_Q
        zero_uncovered(
            out, first, tl.minimum(first + BLOCK_Q, tokens), 1, query_start, sequences,
            head * GROUP + piece * PACK, PACK, KV_HEADS * GROUP, HEAD_DIM, PAD,
        )  # fmt: skip
    s, start, count, length, offset = _tile_at(tile, query_start, seq_lens, sequences, BLOCK_Q)
    if (offset < 0) | (offset >= count) | (count < FROM):
        return
    token, of, own, real = rows_of_tile(count, offset, length, piece, GROUP, PACK, BLOCK_M, BLOCK_Q)
    d = tl.arange(0, WIDTH)
    row, member = (start + token).to(tl.int64), head * GROUP + of
    some = real[:, None] & (d < HEAD_DIM)[None, :]
    place = q + (row * q_stride + member * HEAD_DIM)[:, None] + d[None, :]
    rows = tl.load(place, mask=some, other=0.0)
    table = block_table + s.to(tl.int64) * table_stride
    begin, full, end, least = _keys_of(
        length - count + offset, length, window, BLOCK_Q, BLOCK_N, WINDOWED
    )
    if MODE == 2:
        if (part * split >= end) | (part * split + split <= begin):
            return
        begin, end = tl.maximum(part * split, begin), tl.minimum(part * split + split, end)
    if MODE == 1:
        top, total, acc = _in_turn(
            rows, k_cache, v_cache, table, head, begin, full, end, least, length, own, window,
            inner, factor, split, PAGE, KV_HEADS, HEAD_DIM, WIDTH, BLOCK_M, BLOCK_N, WINDOWED,
            CAPPED, PRECISE,
        )  # fmt: skip
    else:
        top, total, acc = _span(
            rows, k_cache, v_cache, table, head, begin, full, end, least, length, own, window,
            inner, factor, PAGE, KV_HEADS, HEAD_DIM, WIDTH, BLOCK_M, BLOCK_N, WINDOWED, CAPPED,
            PRECISE,
        )  # fmt: skip
    line = row * (KV_HEADS * GROUP) + member
    if MODE == 2:
        line = line * parts + part
        lines = tokens.to(tl.int64) * (KV_HEADS * GROUP) * parts
        tl.store(scratch + (line * HEAD_DIM)[:, None] + d[None, :], acc, mask=some)
        tl.store(scratch + lines * HEAD_DIM + line, top, mask=real)
        tl.store(scratch + lines * (HEAD_DIM + 1) + line, total, mask=real)
    else:
        to = out + (line * HEAD_DIM)[:, None] + d[None, :]
        tl.store(to, mean(acc, total, own >= 0).to(out.dtype.element_ty), mask=some)


@triton.jit
def _merge(
    query_start, seq_lens, out, scratch, tokens, sequences, split, parts, window, factor,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, FROM: tl.constexpr,
    WINDOWED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Merges the parts of one row of ``out`` in order of position."""
    after_previous(OVERLAP)
    line, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    s = _sequence_of(line, query_start, sequences, 1, 0)
    if s < 0:
        return
    start, stop = tl.load(query_start + s), tl.load(query_start + s + 1)
    if (line >= stop) | (stop - start < FROM):
        return
    own = tl.load(seq_lens + s) - stop + line
    least = 0
    if WINDOWED:
        least = tl.maximum(own + 1 - window, 0)
    d = tl.arange(0, WIDTH)[None, :]
    row = line.to(tl.int64) * HEADS + head
    lines = tokens.to(tl.int64) * HEADS * parts
    one = tl.arange(0, 1)
    top, total, acc = nothing_seen(1, WIDTH)
    for part in tl.range(least // split, tl.cdiv(own + 1, split)):
        at = row * parts + part
        top_b = tl.load(scratch + lines * HEAD_DIM + at + one)
        total_b = tl.load(scratch + lines * (HEAD_DIM + 1) + at + one)
        acc_b = tl.load(scratch + at * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
        top, total, acc = merged(top, total, acc, top_b, total_b, acc_b, factor)
    made = mean(acc, total, own >= 0).to(out.dtype.element_ty)
    tl.store(out + row * HEAD_DIM + d, made, mask=d < HEAD_DIM)


TILES = Kernel(
    _tiles, settle=overlap, q="*T", k_cache="*T", v_cache="*T", block_table="*i32",
    query_start="*i32", seq_lens="*i32", out="*T", scratch="*fp32", q_stride="i64",
    table_stride="i64", tokens="i32", sequences="i32", tiles="i32", split="i32", parts="i32",
    window="i32", inner="fp32", factor="fp32",
)  # fmt: skip
MERGE = Kernel(
    _merge, settle=overlap, query_start="*i32", seq_lens="*i32", out="*T", scratch="*fp32",
    tokens="i32", sequences="i32", split="i32", parts="i32", window="i32", factor="fp32",
)  # fmt: skip


def _limit(key: Mapping[str, Any]) -> dict[str, int]:
    """Wide heads from sm90 on: memory keeps a second program out, none needs to make room."""
    wide = key["head_dim"] > 128 and key["shared"] > host.NO_WGMMA
    return {"maxnreg": host.ALL_REGISTERS} if wide else {}


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, int]]:
    """Configs worth measuring."""
    del rows
    for block_m, warps in ((32, 4), (64, 4), (64, 8), (128, 4), (128, 8), (256, 8)):
        for block_n in (32, 64, 128):
            for stages in (2, 3, 4):
                tile = host.row_bytes(key) * (2 * (stages - 1) * block_n + block_m)
                if tile >> 10 <= key["shared"]:
                    yield {
                        "BLOCK_M": block_m,
                        "BLOCK_N": block_n,
                        "num_warps": warps,
                        "num_stages": stages,
                        **_limit(key),
                    }


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """Tiles of 128 rows for many tokens, of 64 for few; 32 or 16 where no tensor core helps."""
    shared = key["shared"]
    if key["dtype"] == "float32":
        low = key["head_dim"] > 128 and shared == host.NO_WGMMA
        small = {"BLOCK_M": 16 if low else 32, "BLOCK_N": 16, "num_warps": 4 if low else 8}
        return ((inf, {**small, "num_stages": 2}),)
    if key["head_dim"] > 128:
        wide = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8, **_limit(key)}
        return ((inf, {**wide, "num_stages": 3 if shared > 99 else 2}),)
    config = {"BLOCK_N": 64 if shared > host.NO_WGMMA else 32, "num_stages": 3}
    few = {**config, "BLOCK_M": 64, "num_warps": 4}
    return ((256, few), (inf, {**config, "BLOCK_M": 128, "num_warps": 8}))


TUNED = Constants("paged_attention_prefill", space=space, default=default)


def tiles_variant(
    shape: host.Shape, config: Mapping[str, int], *, least: int = 1, mode: int = WHOLE
) -> Variant:
    """The kernel over tiles, for sequences of ``least`` queries and more."""
    rows = config["BLOCK_M"]
    pieces, pack = shape.pieces(rows)
    return TILES.variant(
        {"T": shape.dtype},
        {
            **shape.constants(pack, pieces),
            "BLOCK_M": rows,
            "BLOCK_Q": rows // pack,
            "BLOCK_N": config["BLOCK_N"],
            "FROM": least,
            "MODE": mode,
        },
        divisible={**shape.promises, "split": 16},
        **compiler_options(config),
    )


def merge_variant(shape: host.Shape, least: int) -> Variant:
    """The kernel that merges parts."""
    return MERGE.variant(
        {"T": shape.dtype},
        {
            "HEADS": shape.heads,
            "HEAD_DIM": shape.head_dim,
            "WIDTH": shape.width,
            "FROM": least,
            "WINDOWED": shape.windowed,
        },
        divisible={"out": 16, "scratch": 16, "split": 16},
        num_warps=1,
        num_stages=1,
    )


@cache
def buckets(shape: host.Shape) -> tuple[tuple[float, host.Config], ...]:
    """Configs by number of tokens."""
    arch = arch_at(shape.ordinal)
    found, names = TUNED.buckets(arch, shape.key(arch)), set(host.Config._fields)
    return tuple((n, host.Config(**{k: c[k] for k in names & set(c)})) for n, c in found)


@cache
def _tiles_launch(shape: host.Shape, config: host.Config, least: int, mode: int) -> Any:
    made = tiles_variant(shape, config._asdict(), least=least, mode=mode)
    return made.on(device_at(shape.ordinal))


@cache
def _merge_launch(shape: host.Shape, least: int) -> Any:
    return merge_variant(shape, least).on(device_at(shape.ordinal))


def tiles_of(call: host.Call, config: host.Config) -> tuple[int, int]:
    """A bound of the tiles of a call, and the programs of each."""
    pieces, pack = call.shape.pieces(config.BLOCK_M)
    tiles = call.tokens // (config.BLOCK_M // pack) + call.sequences
    return tiles, pieces * call.shape.kv_heads


def prefill(
    call: host.Call,
    config: host.Config,
    *,
    least: int,
    mode: int = WHOLE,
    split: int = 0,
    parts: int = 1,
) -> None:
    """Attends for the sequences of ``least`` queries and more, and zeroes uncovered rows.

    ``split`` is the keys of a part, a multiple of ``BLOCK_N``; ``parts`` how many there are at
    most, for ``IN_GRID``.
    """
    shape, scratch = call.shape, host.unused(call.shape.ordinal)
    tiles, shares = tiles_of(call, config)
    if mode == IN_GRID:
        size = call.tokens * shape.heads * parts * (shape.head_dim + 2)
        scratch = torch.empty(size, dtype=torch.float32, device=call.q.device)
    _tiles_launch(shape, config, least, mode)(
        tiles * shares, parts, 1, *call.tensors, scratch, call.q_stride,
        call.block_table.stride(0), call.tokens, call.sequences, tiles, split, parts, call.window,
        call.inner, call.factor,
    )  # fmt: skip
    if mode == IN_GRID:
        _merge_launch(shape, least)(
            call.tokens * shape.heads, 1, 1, call.query_start, call.seq_lens, call.out, scratch,
            call.tokens, call.sequences, split, parts, call.window, call.factor,
        )  # fmt: skip


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time."""
    for dtype, group, head_dim in (
        (torch.bfloat16, 4, 128),
        (torch.float16, 7, 64),
        (torch.bfloat16, 1, 80),
        (torch.bfloat16, 8, 192),
        (torch.bfloat16, 2, 256),
        (torch.float32, 4, 128),
        (torch.float32, 1, 256),
    ):
        for windowed, capped in ((False, False), (True, True)):
            shape = host.Shape(0, dtype, 8, group, head_dim, 16, windowed, capped)
            name = f"{named(dtype)}/{head_dim}/{group}" + "/window/cap" * windowed
            for _, config in TUNED.defaults(arch, shape.key(arch)):
                yield f"prefill/{name}/{config['BLOCK_M']}", tiles_variant(shape, config)
