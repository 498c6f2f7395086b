"""Limits as cuts of a row: the number above which just less than a target lies, without a sort.

A row is read as numbers (``order_and_noise``) without the low bits that are equal for all values
of the logits' dtype, so that halving a range takes 16 steps for bfloat16 and not 32.
"""

from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl

from trivet_triton.kernels.order_and_noise import LOWEST, number_of, value_of

_HALVINGS: Final = tl.constexpr(16)
"""Of the search among the largest of the lanes, whose result need not be exact."""


@triton.jit
def short_of(x: tl.tensor, SKIP: tl.constexpr) -> Any:
    """Numbers without the low bits that are equal for all values of the logits' dtype."""
    return number_of(x) >> SKIP


@triton.jit
def value_at(number: tl.tensor, SKIP: tl.constexpr) -> Any:
    """The float32 that has a number."""
    low = tl.where(number < 0, (1 << SKIP) - 1, 0)
    return value_of((number << SKIP) | low)


@triton.jit
def numbers_at(row: tl.tensor, i: tl.tensor, vocab: tl.tensor, SKIP: tl.constexpr) -> Any:
    """Numbers of some tokens of a row; that of no token behind its end."""
    x = tl.load(row + i, mask=i < vocab, other=0.0).to(tl.float32)
    return tl.where(i < vocab, short_of(x, SKIP), LOWEST >> SKIP)


@triton.jit
def listed_at(
    row: tl.tensor, tokens: tl.tensor, i: tl.tensor, count: tl.tensor, SKIP: tl.constexpr
) -> Any:
    """Numbers of some tokens of a list; that of no token behind its end."""
    token = tl.load(tokens + i, mask=i < count, other=0)
    x = tl.load(row + token, mask=i < count, other=0.0).to(tl.float32)
    return tl.where(i < count, short_of(x, SKIP), LOWEST >> SKIP)


@triton.jit
def weights_of(number: tl.tensor, likeliest: tl.tensor, heat: tl.tensor, SKIP: tl.constexpr) -> Any:
    """Weights of tokens, that of the likeliest being 1; 0 for -inf and for no token."""
    value = value_at(number, SKIP)
    weight = tl.exp((value - likeliest) / heat)
    nothing = (number == LOWEST >> SKIP) | (value == float("-inf"))
    return tl.where(nothing, 0.0, weight)


@triton.jit
def _middle(low: tl.tensor, high: tl.tensor, halve: tl.tensor, SKIP: tl.constexpr) -> Any:
    """A number in [low, high): half way in value, or in number where ``halve`` is 0."""
    between = (low & high) + ((low ^ high) >> 1)
    value = short_of(0.5 * value_at(low, SKIP) + 0.5 * value_at(high, SKIP), SKIP)
    return tl.minimum(tl.maximum(tl.where(halve != 0, value, between), low), high - 1)


@triton.jit
def above(
    row: tl.tensor,
    vocab: tl.tensor,
    cut: tl.tensor,
    likeliest: tl.tensor,
    heat: tl.tensor,
    WEIGHED: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """How much lies above a cut, and how many tokens."""
    total, count = 0.0, 0
    for start in range(0, vocab, BLOCK):
        number = numbers_at(row, start + tl.arange(0, BLOCK), vocab, SKIP)
        over = number > cut
        found = tl.sum(over.to(tl.int32))
        count += found
        if WEIGHED:
            if found > 0:
                weight = weights_of(number, likeliest, heat, SKIP)
                total += tl.sum(tl.where(over, weight, 0.0))
        else:
            total += found.to(tl.float32)
    return total, count


@triton.jit
def gather(
    row: tl.tensor,
    vocab: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    tokens: tl.tensor,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
) -> Any:
    """Lists the tokens with numbers in [low, high] in order of their ids; how many there are."""
    count = 0
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        number = numbers_at(row, i, vocab, SKIP)
        inside = ((number >= low) & (number <= high)).to(tl.int32)
        found = tl.sum(inside)
        if found > 0:
            at = count + tl.cumsum(inside) - inside
            tl.store(tokens + at, i, mask=(inside > 0) & (at < ROOM))
            count += found
    tl.debug_barrier()
    return count


@triton.jit
def bound_by_lanes(
    lanes: tl.tensor,
    bottom: tl.tensor,
    top: tl.tensor,
    target: tl.tensor,
    likeliest: tl.tensor,
    heat: tl.tensor,
    WEIGHED: tl.constexpr,
    SKIP: tl.constexpr,
) -> Any:
    """A number that the cut is not below, from the largest of each lane; ``bottom`` if unknown."""
    share = tl.where(lanes == LOWEST >> SKIP, 0.0, 1.0)
    if WEIGHED:
        share = weights_of(lanes, likeliest, heat, SKIP)
    low, high = bottom, top
    for _ in range(_HALVINGS):
        if low < high:
            middle = _middle(low, high, 0, SKIP) + 1
            if tl.sum(tl.where(lanes >= middle, share, 0.0)) >= target:
                low = middle
            else:
                high = middle - 1
    return low


@triton.jit
def cut_at(
    row: tl.tensor,
    vocab: tl.tensor,
    bottom: tl.tensor,
    top: tl.tensor,
    target: tl.tensor,
    listed: tl.tensor,
    count: tl.tensor,
    tokens: tl.tensor,
    likeliest: tl.tensor,
    heat: tl.tensor,
    WEIGHED: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
) -> Any:
    """The least number above which less than ``target`` lies, and how much lies above it.

    A token is kept while what lies before it is less than the target. ``listed`` says whether all
    tokens from ``bottom`` on are gathered, ``count`` of them.
    """
    low, high, over = bottom, top, 0.0
    if listed == 0:
        most, least, halve = vocab, 0, 1
        while (low < high) & (most - least > ROOM):
            middle = _middle(low, high, halve, SKIP)
            lies, many = above(row, vocab, middle, likeliest, heat, WEIGHED, SKIP, BLOCK)
            if lies < target:
                high, over, least = middle, lies, many
            else:
                low, most = middle + 1, many
            halve = 1 - halve
        count = 0
        if low < high:
            count = gather(row, vocab, low, high, tokens, SKIP, BLOCK, ROOM)
    i = tl.arange(0, ROOM)
    number = listed_at(row, tokens, i, count, SKIP)
    share = tl.where(number == LOWEST >> SKIP, 0.0, 1.0)
    if WEIGHED:
        share = weights_of(number, likeliest, heat, SKIP)
    while low < high:
        middle = _middle(low, high, 0, SKIP)
        if over + tl.sum(tl.where(number > middle, share, 0.0)) < target:
            high = middle
        else:
            low = middle + 1
    return low, over + tl.sum(tl.where(number > low, share, 0.0))
