"""The best candidate of each row under top-k, top-p and min-p: one program a row, no sort.

The tokens that limits keep are a prefix of the row in its order, so that a limit is a number (the
cut) and how many tokens that have just this number it keeps, lowest ids first. Cuts are searched
by halving. A first pass leaves the largest number that each lane saw; enough of those lie above a
bound, so that the few tokens above it are gathered and searched in registers. A row that is too
flat for that is halved in passes over the whole, until what is left between the ends is few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.kernels.triton import Kernel, Variant
from trivet_triton.hardware import arch_at, architecture, device_at
from trivet_triton.kernels.cuts import (
    above,
    bound_by_lanes,
    cut_at,
    gather,
    listed_at,
    numbers_at,
    short_of,
    value_at,
    weights_of,
)
from trivet_triton.kernels.order_and_noise import (
    LOWEST,
    MOST_NOISE,
    id_of,
    low_bits,
    noise_of_each,
    noise_of_run,
    number_of,
    with_id,
)
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import WIDE, power_of_two

_NEGLIGIBLE: Final = tl.constexpr(30.0)
"""What weighs less than exp(-30) of the likeliest token moves no sum that float32 can hold."""

_ALL: Final = tl.constexpr(1 << 30)
"""More tokens than any row has."""


@triton.jit
def _kept(
    number: tl.tensor,
    cut: tl.tensor,
    ties: tl.tensor,
    before: tl.tensor,
    likeliest: tl.tensor,
    heat: tl.tensor,
    least: tl.tensor,
    SKIP: tl.constexpr,
) -> Any:
    """Which tokens stay, given how many with the number of the cut came before them."""
    equal = (number == cut).to(tl.int32)
    rank = before + tl.cumsum(equal) - equal
    inside = (number > cut) | ((equal > 0) & (rank < ties))
    return inside & (weights_of(number, likeliest, heat, SKIP) >= least)


@triton.jit
def _draw_listed(
    row: tl.tensor,
    tokens: tl.tensor,
    count: tl.tensor,
    cut: tl.tensor,
    ties: tl.tensor,
    likeliest: tl.tensor,
    heat: tl.tensor,
    least: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    SKIP: tl.constexpr,
    PIECE: tl.constexpr,
) -> Any:
    """The best of the gathered tokens."""
    best, best_token = tl.full([PIECE], LOWEST, tl.int32), tl.zeros([PIECE], tl.int32)
    before = 0
    for start in range(0, count, PIECE):
        i = start + tl.arange(0, PIECE)
        number = listed_at(row, tokens, i, count, SKIP)
        token = tl.load(tokens + i, mask=i < count, other=0)
        kept = _kept(number, cut, ties, before, likeliest, heat, least, SKIP)
        before += tl.sum((number == cut).to(tl.int32))
        score = value_at(number, SKIP) / heat + noise_of_each(seed, position, token)
        own = tl.where(kept & (i < count), number_of(score), LOWEST)
        better = own > best
        best = tl.where(better, own, best)
        best_token = tl.where(better, token, best_token)
    return tl.max(with_id(best, best_token))


@triton.jit
def _draw(
    row: tl.tensor,
    vocab: tl.tensor,
    cut: tl.tensor,
    ties: tl.tensor,
    likeliest: tl.tensor,
    heat: tl.tensor,
    least: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
) -> Any:
    """The best of a whole row, with noise only where it could make a token the best."""
    best, best_token = tl.full([PIECE], LOWEST, tl.int32), tl.zeros([PIECE], tl.int32)
    before, reached = 0, float("-inf")
    for start in range(0, vocab, BLOCK):
        number = numbers_at(row, start + tl.arange(0, BLOCK), vocab, SKIP)
        largest = tl.max(number)
        equal = tl.sum((number == cut).to(tl.int32))
        if (largest >= cut) & (value_at(largest, SKIP) / heat + MOST_NOISE >= reached):
            seen = before
            for first in range(start, tl.minimum(start + BLOCK, vocab), PIECE):
                token = first + tl.arange(0, PIECE)
                piece = numbers_at(row, token, vocab, SKIP)
                kept = _kept(piece, cut, ties, seen, likeliest, heat, least, SKIP)
                seen += tl.sum((piece == cut).to(tl.int32))
                noise = noise_of_run(seed, position, first // 4, PIECE)
                score = value_at(piece, SKIP) / heat + noise
                reached = tl.maximum(reached, tl.max(tl.where(kept, score, float("-inf"))))
                own = tl.where(kept & (token < vocab), number_of(score), LOWEST)
                better = own > best
                best = tl.where(better, own, best)
                best_token = tl.where(better, token, best_token)
        before += equal
    return tl.max(with_id(best, best_token))


@triton.jit
def _survey(
    row: tl.tensor,
    vocab: tl.tensor,
    heat: tl.tensor,
    WEIGHED: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """The largest number of each lane, the row's greedy choice, the sum of its weights."""
    lanes = tl.full([BLOCK], LOWEST >> SKIP, tl.int32)
    token, mass = tl.zeros([BLOCK], tl.int32), 0.0
    largest = tl.max(lanes)
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        number = numbers_at(row, i, vocab, SKIP)
        better = number > lanes
        lanes = tl.where(better, number, lanes)
        token = tl.where(better, i, token)
        if WEIGHED:
            here = tl.max(number)
            if here > largest:
                mass *= weights_of(largest, value_at(here, SKIP), heat, SKIP)
                largest = here
            mass += tl.sum(weights_of(number, value_at(largest, SKIP), heat, SKIP))
    return lanes, tl.max(with_id(lanes, token)), mass


@triton.jit
def _limit(
    row: tl.tensor, vocab: tl.tensor, tokens: tl.tensor, lanes: tl.tensor, top: tl.tensor,
    mass: tl.tensor, k: tl.tensor, p: tl.tensor, likeliest: tl.tensor, heat: tl.tensor,
    SKIP: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
) -> Any:  # fmt: skip
    """The cut of top-k and top-p, how many with its number stay; whether, what count is listed."""
    none = tl.max(lanes) * 0 + (LOWEST >> SKIP)
    cut, ties, listed, count = none, _ALL, 0, 0
    # weights below it are nothing, so that no share of the whole is cut there
    nothing = short_of(likeliest - _NEGLIGIBLE * heat, SKIP)
    if (k > 0) | (p < 1):
        bottom = tl.where(k > 0, none, nothing)
        if k > 0:
            bound = bound_by_lanes(lanes, bottom, top, k, likeliest, heat, False, SKIP)
        else:
            bound = bound_by_lanes(lanes, bottom, top, p * mass, likeliest, heat, True, SKIP)
        if (bound > bottom) | (vocab <= ROOM):
            bottom = bound
            count = gather(row, vocab, bottom, top, tokens, SKIP, BLOCK, ROOM)
            listed = (count <= ROOM).to(tl.int32)
        if k > 0:
            cut, lies = cut_at(
                row, vocab, bottom, top, k * 1.0, listed, count,
                tokens, likeliest, heat, False, SKIP, BLOCK, ROOM,
            )  # fmt: skip
            ties = k - lies.to(tl.int32)
            bottom = tl.maximum(cut, nothing)
            if p < 1:
                mass, _ = above(row, vocab, cut, likeliest, heat, True, SKIP, BLOCK)
                mass += ties * weights_of(cut, likeliest, heat, SKIP)
        if p < 1:
            cut_p, lies = cut_at(
                row, vocab, bottom, top, p * mass, listed, count,
                tokens, likeliest, heat, True, SKIP, BLOCK, ROOM,
            )  # fmt: skip
            left = (p * mass - lies) / weights_of(cut_p, likeliest, heat, SKIP)
            left = tl.where(left < _ALL, tl.ceil(left), _ALL).to(tl.int32)
            ties = tl.where(cut_p > cut, left, tl.minimum(left, ties))
            cut = cut_p
    return cut, ties, listed, count


@triton.jit
def _sample(
    logits: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    space: tl.tensor,
    ids: tl.tensor,
    row_stride: tl.tensor,
    vocab: tl.tensor,
    HAS_K: tl.constexpr,
    HAS_P: tl.constexpr,
    HAS_M: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
    ROOM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    at = tl.program_id(0).to(tl.int64)
    row, tokens = logits + at * row_stride, space + at * ROOM
    given = tl.load(temperature + at)
    heat = tl.where(given > 0, given, 1.0)
    lanes, chosen, mass = _survey(row, vocab, heat, HAS_P, SKIP, BLOCK)
    top = (chosen >> 32).to(tl.int32)
    likeliest = value_at(top, SKIP)
    if (given > 0) & (likeliest - likeliest == 0):
        k, p, least = 0, 1.0, 0.0
        if HAS_K:
            k = tl.load(top_k + at)
            k = tl.where(k < vocab, k, 0)
        if HAS_P:
            p = tl.load(top_p + at)
        if HAS_M:
            least = tl.load(min_p + at)
        cut, ties, listed, count = _limit(
            row, vocab, tokens, lanes, top, mass, k, p, likeliest, heat, SKIP, BLOCK, ROOM
        )
        if listed != 0:
            chosen = _draw_listed(
                row, tokens, count, cut, ties, likeliest, heat, least,
                tl.load(seed + at), tl.load(position + at), SKIP, PIECE,
            )  # fmt: skip
        else:
            chosen = _draw(
                row, vocab, cut, ties, likeliest, heat, least,
                tl.load(seed + at), tl.load(position + at), SKIP, BLOCK, PIECE,
            )  # fmt: skip
    tl.store(ids + at, id_of(chosen))


_KERNEL: Final = Kernel(
    _sample,
    settle=overlap,
    logits="*T",
    temperature="*fp32",
    top_k="*K",
    top_p="*fp32",
    min_p="*fp32",
    seed="*i64",
    position="*i64",
    space="*i32",
    ids="*i64",
    row_stride="i64",
    vocab="i32",
)

ROOM: Final = 4096
_BLOCK: Final = 8192


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """Tokens of a step, tokens that are drawn at once, and tokens of a warp; 16 warps at most."""
    del key
    return ((float("inf"), {"BLOCK": _BLOCK, "PIECE": 2048, "EACH": 512}),)


def _variant(
    element: torch.dtype, limits: tuple[bool, bool, bool], vocab: int, arch: str, *, aligned: bool
) -> Variant:
    own = architecture(arch).own.get("limited_candidate")
    [(_, config)] = (own.default if own else default)({})
    promised = {"logits": WIDE, "row_stride": WIDE // element.itemsize, "vocab": 16}
    promised = {"space": WIDE, **(promised if aligned else {})}  # that is always fresh
    block = max(min(power_of_two(vocab), config["BLOCK"]), 16)
    return _KERNEL.variant(
        {"T": element, "K": torch.int32 if limits[0] else torch.float32},
        {
            **dict(zip(("HAS_K", "HAS_P", "HAS_M"), limits, strict=True)),
            "SKIP": low_bits(element),
            "BLOCK": block,
            "PIECE": min(block, config["PIECE"]),
            "ROOM": min(block, ROOM),
        },
        divisible=promised,
        num_warps=max(1, min(16, block // config["EACH"])),
    )


@cache
def _launch(
    index: int,
    element: torch.dtype,
    limits: tuple[bool, bool, bool],
    vocab: int,
    aligned: bool,
) -> Any:
    """The launch for rows of up to so many tokens, and the room that each needs."""
    made = _variant(element, limits, vocab, arch_at(index), aligned=aligned)
    return made.on(device_at(index)), dict(made.constants)["ROOM"]


def best(
    logits: Tensor,
    given: tuple[Tensor, Tensor, Tensor],
    limits: tuple[Tensor | None, Tensor | None, Tensor | None],
    ids: Tensor,
) -> None:
    """Writes the choice of each row.

    Args:
        logits: ``[seqs, vocab]``, the last dim dense.
        given: temperature, seed, position.
        limits: top-k, top-p, min-p.
        ids: int64 ``[seqs]``.
    """
    seqs, vocab = logits.shape
    stride = logits.stride(0)
    aligned = vocab % 16 == 0
    aligned = aligned and not (logits.data_ptr() | stride * logits.element_size()) & (WIDE - 1)
    heat, seed, position = given
    k, p, least = limits
    launch, room = _launch(
        logits.get_device(),
        logits.dtype,
        (k is not None, p is not None, least is not None),
        min(power_of_two(vocab), _BLOCK),
        aligned,
    )
    launch(
        seqs,
        1,
        1,
        logits,
        heat,
        heat if k is None else k,  # what is absent is never read
        heat if p is None else p,
        heat if least is None else least,
        seed,
        position,
        ids.new_empty(room * seqs, dtype=torch.int32),
        ids,
        stride,
        vocab,
    )


_KINDS: Final = (
    ("top_k", (True, False, False)),
    ("top_p", (False, True, False)),
    ("min_p", (False, False, True)),
    ("all", (True, True, True)),
)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time."""
    for element in (torch.bfloat16, torch.float32):
        for name, limits in _KINDS:
            made = _variant(element, limits, _BLOCK, arch, aligned=True)
            yield f"limited_candidate/{name}/{element}".replace("torch.", ""), made
