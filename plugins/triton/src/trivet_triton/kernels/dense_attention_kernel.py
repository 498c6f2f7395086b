"""The kernel of attention over dense keys and values: one tile of queries a program.

A tile holds rows, one for each pair of a token and a query head of one key head's group, as in
paged_attention. Keys that every row sees by position go through a loop that compares no positions;
with no mask it compares nothing. A mask that all heads and queries share is read as a row of it,
any other one as a tile.
"""

# ruff: noqa: ANN001, ANN202  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from trivet.kernels.triton import Kernel
from trivet_triton.kernels.attention_tile import (
    cache_rows,
    mean,
    nothing_seen,
    rows_of_tile,
    softmax_step,
    tanh,
)
from trivet_triton.kernels.overlap import after_previous, overlap

NO_MASK: Final = 0
ROW_MASK: Final = 1
"""All heads and queries of one of the batch share a row of the mask."""
TILE_MASK: Final = 2


@triton.jit
def _entries(mask, lines, real, keys, mask_keys, MASK: tl.constexpr, EDGE: tl.constexpr):
    """What the mask says of a tile: ``[1, BLOCK_N]`` or ``[BLOCK_M, BLOCK_N]``.

    ``mask_keys`` is the length of its rows: of tiles a multiple of 16 bytes, so that no load is
    cut.
    """
    if MASK == 1:
        found = tl.load(mask + keys, mask=keys < mask_keys, other=0)[None, :]
    else:
        place = mask + lines[:, None] + keys[None, :]
        if EDGE:
            inside = real[:, None] & (keys < mask_keys)[None, :]
            found = tl.load(place, mask=inside, other=0)
        else:
            found = tl.load(place, mask=real[:, None], other=0)
    return found


@triton.jit
def _hidden_by(entries):
    """Whether an entry of a mask hides its key: False does, and ``-inf``."""
    return entries == 0 if entries.dtype == tl.int1 else entries.to(tl.float32) == -float("inf")


@triton.jit
def _hidden_at(keys, there, own, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Which keys are hidden from a row by position."""
    ahead = keys[None, :] - own[:, None]
    hidden = (there == 0)[None, :]
    if CAUSAL:
        hidden = hidden | (ahead > 0)
    if WINDOWED:
        hidden = hidden | (ahead <= -window)
        if not CAUSAL:
            hidden = hidden | (ahead >= window)
    return hidden


@triton.jit
def _over(
    top, total, acc, sees, q, k, v, mask, lines, real, mask_keys, begin, end, least, last, own,
    window, k_key, v_key, inner, outer, factor,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, EDGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, MASK: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """Goes over the keys ``begin .. end`` in tiles of ``BLOCK_N``, softmax online in float32.

    ``top``, ``total`` and ``acc`` are as in paged_attention, in units of 1 where ``SCALED``.
    ``sees`` counts for rows under a mask whether they have seen a key. Keys outside of
    ``least .. last`` are not read. ``EDGE``: positions hide some key of the range from some row.
    """
    n = tl.arange(0, BLOCK_N)
    for start in tl.range(begin, end, BLOCK_N):
        keys = start + n
        there = (keys >= least) & (keys < last)
        at = keys.to(tl.int64)
        k_tile = cache_rows(k, at * k_key, there, HEAD_DIM, WIDTH, EDGE)
        v_tile = cache_rows(v, at * v_key, there, VALUE_DIM, VALUE_WIDTH, EDGE)
        scores = tl.dot(q, tl.trans(k_tile), input_precision="ieee")
        if CAPPED:
            scores = tanh(scores * inner, PRECISE)
        if MASK == 0:
            if SCALED:
                scores = scores * outer
            if EDGE:
                hidden = _hidden_at(keys, there, own, window, CAUSAL, WINDOWED)
                scores = tl.where(hidden, -float("inf"), scores)
        else:
            entries = _entries(mask, lines, real, keys, mask_keys, MASK, EDGE)
            hidden = _hidden_by(entries)
            if entries.dtype != tl.int1:
                scores = tl.fma(scores, outer, entries.to(tl.float32))
            elif SCALED:
                scores = scores * outer
            if EDGE:
                hidden = hidden | _hidden_at(keys, there, own, window, CAUSAL, WINDOWED)
            scores = tl.where(hidden, -float("inf"), scores)
            sees = tl.maximum(sees, tl.max((hidden == 0).to(tl.int32), 1))
        weights, top, total, acc = softmax_step(scores, top, total, acc, factor, True)
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    return top, total, acc, sees


@triton.jit
def _keys_of(
    own, keys, window,
    BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Keys of a tile whose first token is at ``own``.

    The first that any row sees, where those tiles end that every row sees by position, and where
    all end.
    """
    least, full, end = 0, keys // BLOCK_N * BLOCK_N, keys
    if CAUSAL:
        full = tl.maximum(own + 1, 0) // BLOCK_N * BLOCK_N
        end = tl.maximum(tl.minimum(own + BLOCK_Q, keys), 0)
    if WINDOWED:
        least = tl.maximum(own + 1 - window, 0)
        full = 0
        if not CAUSAL:
            end = tl.maximum(tl.minimum(own + BLOCK_Q - 1 + window, keys), 0)
    return least, full, end


@triton.jit
def _dense(
    q, k, v, mask, out, q_batch, q_query, q_head, k_batch, k_key, k_head, v_batch, v_key,
    v_head, mask_batch, mask_head, mask_query, mask_keys, queries, keys, tiles, window, inner,
    outer, factor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, PIECES: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    SCALED: tl.constexpr, MASK: tl.constexpr, PRECISE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One tile of queries; the last tile of a head may have the most keys and starts first."""
    after_previous(OVERLAP)
    tile = tiles - 1 - tl.program_id(0) % tiles
    share = tl.program_id(0) // tiles
    piece, head = share % PIECES, share // PIECES % KV_HEADS
    batch = (share // (PIECES * KV_HEADS)).to(tl.int64)
    offset = tile * BLOCK_Q
    token, of, own, real = rows_of_tile(queries, offset, keys, piece, GROUP, PACK, BLOCK_M, BLOCK_Q)
    d, row, member = tl.arange(0, WIDTH), token.to(tl.int64), head * GROUP + of
    place = q + batch * q_batch + (row * q_query + member * q_head)[:, None] + d[None, :]
    rows = tl.load(place, mask=real[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    lines = row
    if MASK != 0:
        mask += batch * mask_batch
        lines = row * mask_query + member * mask_head
    first = keys - queries + offset
    least, full, end = _keys_of(first, keys, window, BLOCK_Q, BLOCK_N, CAUSAL, WINDOWED)
    top, total, acc = nothing_seen(BLOCK_M, VALUE_WIDTH)
    sees, begin = tl.zeros([BLOCK_M], tl.int32), least // BLOCK_N * BLOCK_N
    if not WINDOWED:
        top, total, acc, sees = _over(
            top, total, acc, sees, rows, k, v, mask, lines, real, mask_keys, begin, full, least,
            end, own, window, k_key, v_key, inner, outer, factor, HEAD_DIM, WIDTH, VALUE_DIM,
            VALUE_WIDTH, BLOCK_N, False, CAUSAL, WINDOWED, CAPPED, SCALED, MASK, PRECISE,
        )  # fmt: skip
        begin = full
    top, total, acc, sees = _over(
        top, total, acc, sees, rows, k, v, mask, lines, real, mask_keys, begin, end, least, end,
        own, window, k_key, v_key, inner, outer, factor, HEAD_DIM, WIDTH, VALUE_DIM,
        VALUE_WIDTH, BLOCK_N, True, CAUSAL, WINDOWED, CAPPED, SCALED, MASK, PRECISE,
    )  # fmt: skip
    some = sees > 0
    if MASK == 0:
        if CAUSAL:
            some = own >= 0
        elif WINDOWED:
            some = own + window > 0
        else:
            some = real
    e = tl.arange(0, VALUE_WIDTH)
    line = (batch * queries + row) * (KV_HEADS * GROUP) + member
    to = out + (line * VALUE_DIM)[:, None] + e[None, :]
    made = mean(acc, total, some).to(out.dtype.element_ty)
    tl.store(to, made, mask=real[:, None] & (e < VALUE_DIM)[None, :])


DENSE: Final = Kernel(
    _dense, settle=overlap, q="*T", k="*T", v="*T", mask="*M", out="*T",
    q_batch="i64", q_query="i64", q_head="i64", k_batch="i64", k_key="i64", k_head="i64",
    v_batch="i64", v_key="i64", v_head="i64", mask_batch="i64", mask_head="i64",
    mask_query="i64", mask_keys="i32", queries="i32", keys="i32", tiles="i32", window="i32",
    inner="fp32", outer="fp32", factor="fp32",
)  # fmt: skip
