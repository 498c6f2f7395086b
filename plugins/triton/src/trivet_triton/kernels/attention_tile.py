"""One tile of attention over a paged cache: what decode and prefill have in common.

A tile holds rows, one for each pair of a token and a query head of one key head's group: the
group's heads lie beside each other in ``q``, so that a key is read once for all of them. Scores
stay as the product made them; ``factor`` (scale and log2 e) enters in the exponent, in the same
arithmetic for every loop over keys, masked or not. Nothing is done to ``q`` on its way: what is
would stay in registers, and cost a third of the speed.
"""

# ruff: noqa: ANN001, ANN201  # Triton takes an annotation of an argument for its type
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of_tile(
    count, offset, length, piece,
    GROUP: tl.constexpr, PACK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Token and head of each row, its position in the sequence, and whether it is a row at all.

    Args:
        count: queries of the sequence.
        offset: first query of the tile.
        length: keys of the sequence.
        piece: which part of a group too large for one tile.
        GROUP: query heads of a key head.
        PACK: query heads in a tile.
        BLOCK_M: rows of a tile.
        BLOCK_Q: tokens of a tile; ``BLOCK_Q * PACK <= BLOCK_M``.
    """
    row = tl.arange(0, BLOCK_M)
    token, head = offset + row // PACK, piece * PACK + row % PACK
    valid = (row < BLOCK_Q * PACK) & (token < count) & (head < GROUP)
    own = tl.where(valid, length - count + token, -1)
    return token, head, own, valid


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    """Hyperbolic tangent; ``PRECISE`` keeps the relative error of float32 near zero."""
    e = tl.exp2(-2.8853900817779268 * tl.abs(x))  # 2 log2(e)
    y = (1.0 - e) / (1.0 + e)
    if PRECISE:
        s = x * x
        p = 0.021869488536155203 + s * -0.008863235529902197
        p = -0.05396825396825397 + s * p
        p = 0.13333333333333333 + s * p
        p = -0.3333333333333333 + s * p
        small = tl.abs(x) + tl.abs(x) * (s * p)
        y = tl.where(tl.abs(x) < 0.25, small, y)
    return tl.where(x < 0, -y, y)


@triton.jit
def cache_rows(
    base, at, there,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Rows of a cache; what is not there reads as zero, whatever memory holds."""
    d = tl.arange(0, WIDTH)
    place = base + at[:, None] + d[None, :]
    if MASKED:
        if WIDTH == HEAD_DIM:
            rows = tl.load(place, mask=there[:, None], other=0.0)
        else:
            rows = tl.load(place, mask=there[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    elif WIDTH == HEAD_DIM:
        rows = tl.load(place)
    else:
        rows = tl.load(place, mask=(d < HEAD_DIM)[None, :], other=0.0)
    return rows


@triton.jit
def softmax_step(scores, top, total, acc, factor, MASKED: tl.constexpr):
    """Weights of a tile of scores, and what was summed before relative to the new maximum.

    The difference comes first, so that the largest score has the weight 1 whatever its size; one
    fused multiply-add of both would leave half an ulp of the exponent.
    """
    new = tl.maximum(top, tl.max(scores, 1))
    level = new
    if MASKED:  # a row that has seen nothing yet
        level = tl.where(new == -float("inf"), 0.0, new)
    weights = tl.exp2((scores - level[:, None]) * factor)
    fade = tl.exp2((top - level) * factor)  # exactly 1 where the maximum stays
    total = tl.fma(total, fade, tl.sum(weights, 1))
    return weights, new, total, acc * fade[:, None]


@triton.jit
def walk(
    top, total, acc, q, k_cache, v_cache, table, head,
    begin, end, least, length, own, window, inner, factor,
    PAGE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """Goes over the keys ``begin .. end`` in tiles of ``BLOCK_N``, softmax online in float32.

    Entries of the page table are loaded one tile ahead, so that their latency is hidden.

    ``top`` is the largest score of a row so far, as the product made it, ``-inf`` before the
    first; ``total`` the sum of its weights relative to that, ``acc`` the weighted sum of values.
    ``own`` is the position of a row's token, ``length`` the keys of the sequence. Keys before
    ``least``, the first that some row sees, and from ``end`` on are not read. ``MASKED``: some
    key of the range is hidden from some row; else nothing is compared.
    """
    n = tl.arange(0, BLOCK_N)
    keys = begin + n
    last = tl.minimum(end, length)
    pages = tl.load(table + keys // PAGE, mask=(keys >= least) & (keys < last), other=0)
    for start in tl.range(begin, end, BLOCK_N):
        keys = start + n
        there = (keys >= least) & (keys < last)
        line = (keys % PAGE) * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM
        at = pages.to(tl.int64) * (PAGE * KV_HEADS * HEAD_DIM) + line
        later = keys + BLOCK_N
        pages = tl.load(table + later // PAGE, mask=later < last, other=0)
        k = cache_rows(k_cache, at, there, HEAD_DIM, WIDTH, MASKED)
        v = cache_rows(v_cache, at, there, HEAD_DIM, WIDTH, MASKED)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if CAPPED:
            scores = tanh(scores * inner, PRECISE)
        if MASKED:
            seen = keys[None, :] <= own[:, None]
            if WINDOWED:
                seen = seen & (keys[None, :] > own[:, None] - window)
            scores = tl.where(seen, scores, -float("inf"))
        weights, top, total, acc = softmax_step(
            scores, top, total, acc, factor, MASKED
        )  # fmt: skip
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return top, total, acc


@triton.jit
def nothing_seen(BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """The state before the first key: ``top, total, acc`` of ``walk``."""
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    return top, tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, WIDTH], tl.float32)


@triton.jit
def mean(acc, total, sees):
    """The weighted mean of the values; zeros where a row sees no key, NaN if none has weight."""
    return acc / tl.where(sees | (total != 0.0), total, 1.0)[:, None]


@triton.jit
def merged(top, total, acc, top_b, total_b, acc_b, factor):
    """Two states over different keys as one; a state that has seen nothing changes no bit."""
    new = tl.maximum(top, top_b)
    level = tl.where(new == -float("inf"), 0.0, new)
    fade = tl.exp2((top - level) * factor)
    fade_b = tl.exp2((top_b - level) * factor)
    total = tl.fma(total, fade, total_b * fade_b)
    return new, total, tl.fma(acc, fade[:, None], acc_b * fade_b[:, None])


@triton.jit
def zero_uncovered(
    out, first, last, step, query_start, sequences, head,
    SHARE: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Writes zeros to those rows of ``first, first + step, .. last`` that no sequence covers.

    ``head`` is the first query head of this program's share and ``SHARE`` how many it has; heads
    past the last are left out. ``PAD``: ``SHARE * HEAD_DIM`` rounded up to a power of two.
    """
    begin, end = tl.load(query_start), tl.load(query_start + sequences)
    i = tl.arange(0, PAD)
    mine = (i < SHARE * HEAD_DIM) & (head * HEAD_DIM + i < HEADS * HEAD_DIM)
    for row in tl.range(first.to(tl.int64), last, step):
        if (row < begin) | (row >= end):
            place = out + row * (HEADS * HEAD_DIM) + head * HEAD_DIM
            tl.store(place + i, tl.zeros([PAD], out.dtype.element_ty), mask=mine)
