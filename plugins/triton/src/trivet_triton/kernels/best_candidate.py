"""The best candidate of each row: one pass, by several programs a row where rows are few.

What a row's choice depends on is found by maxima alone, so that no split of a row changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.kernels.triton import Kernel, Variant
from trivet_triton.hardware import device_at
from trivet_triton.kernels.order_and_noise import (
    LOWEST,
    MOST_NOISE,
    id_of,
    is_finite,
    noise_of_run,
    number_of,
    value_of,
    with_id,
)
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import WIDE


@triton.jit
def _choose(
    greedy: tl.tensor,
    sampled: tl.tensor,
    heat: tl.tensor,
    ids: tl.tensor,
    scores: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    SCORES: tl.constexpr,
) -> None:
    """Stores a row's choice: by its noise where it has a temperature and a finite maximum."""
    noisy = (heat > 0) & is_finite((greedy >> 32).to(tl.int32))
    chosen = tl.where(noisy, sampled, greedy)
    tl.store(ids + row, first + id_of(chosen))
    if SCORES:
        tl.store(scores + row, value_of((chosen >> 32).to(tl.int32)))


@triton.jit
def _scan(
    logits: tl.tensor,
    temperature: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    parts: tl.tensor,
    ids: tl.tensor,
    scores: tl.tensor,
    row_stride: tl.tensor,
    vocab: tl.tensor,
    first: tl.tensor,
    tiles: tl.tensor,
    SAMPLED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    SCORES: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    greedy, greedy_id = tl.full([BLOCK], LOWEST, tl.int32), tl.zeros([BLOCK], tl.int32)
    noisy, noisy_id = greedy, greedy_id
    heat, reached, key, place = 0.0, float("-inf"), first, first
    if SAMPLED:
        heat = tl.load(temperature + row)
        key, place = tl.load(seed + row), tl.load(position + row)
    for tile in range(part * tiles, part * tiles + tiles):
        i = tile * BLOCK + lane - SHIFT
        there = (i >= 0) & (i < vocab)
        x = tl.load(logits + row * row_stride + i, mask=there, other=0.0).to(tl.float32)
        number = tl.where(there, number_of(x), LOWEST)
        better = number > greedy
        greedy = tl.where(better, number, greedy)
        greedy_id = tl.where(better, i, greedy_id)
        if heat > 0:  # a constant 0 where nothing is sampled
            z = tl.where(there, x / heat, float("-inf"))
            if tl.max(z) + MOST_NOISE >= reached:
                block = (first - SHIFT) // 4 + tile * (BLOCK // 4)
                score = z + noise_of_run(key, place, block, BLOCK)
                reached = tl.maximum(reached, tl.max(score))
                number = tl.where(there, number_of(score), LOWEST)
                better = number > noisy
                noisy = tl.where(better, number, noisy)
                noisy_id = tl.where(better, i, noisy_id)
    best = tl.max(with_id(greedy, greedy_id))
    best_noisy = best
    if SAMPLED:
        best_noisy = tl.max(with_id(noisy, noisy_id))
    if SPLIT:
        at = parts + 2 * (row * tl.num_programs(1) + part)
        tl.store(at, best)
        tl.store(at + 1, best_noisy)
    else:
        _choose(best, best_noisy, heat, ids, scores, row, first, SCORES)


@triton.jit
def _join(
    parts: tl.tensor,
    temperature: tl.tensor,
    ids: tl.tensor,
    scores: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    SAMPLED: tl.constexpr,
    SCORES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    heat = 0.0
    if SAMPLED:
        heat = tl.load(temperature + row)
    at, there = parts + 2 * (row * count + part), part < count
    none = -(1 << 63)
    greedy = tl.max(tl.load(at, mask=there, other=none))
    noisy = tl.max(tl.load(at + 1, mask=there, other=none))
    _choose(greedy, noisy, heat, ids, scores, row, first, SCORES)


_SCAN: Final = Kernel(
    _scan,
    settle=overlap,
    logits="*T",
    temperature="*H",
    seed="*i64",
    position="*i64",
    parts="*i64",
    ids="*i64",
    scores="*S",
    row_stride="i64",
    vocab="i32",
    first="i64",
    tiles="i32",
)
_JOIN: Final = Kernel(
    _join,
    settle=overlap,
    parts="*i64",
    temperature="*H",
    ids="*i64",
    scores="*S",
    count="i32",
    first="i64",
)

BLOCK: Final = 2048
MOST_PARTS: Final = 64
PROGRAMS: Final = 528
"""Four for each multiprocessor of the largest device measured for; more rows need no split."""


def _absent(*, sampled: bool, scored: bool) -> dict[str, torch.dtype]:
    """Dtypes of what may be absent, the ids standing in for it."""
    return {
        "H": torch.float32 if sampled else torch.int64,
        "S": torch.float32 if scored else torch.int64,
    }


def _scanning(
    element: torch.dtype, *, sampled: bool, shift: int, split: bool, scored: bool, aligned: bool
) -> Variant:
    promised = {"logits": WIDE, "row_stride": WIDE // element.itemsize, "vocab": 16}
    return _SCAN.variant(
        {"T": element, **_absent(sampled=sampled, scored=scored)},
        {"SAMPLED": sampled, "SHIFT": shift, "BLOCK": BLOCK, "SPLIT": split, "SCORES": scored},
        divisible=promised if aligned else {},
        num_warps=4,
    )


def _joining(*, sampled: bool, scored: bool) -> Variant:
    constants = {"SAMPLED": sampled, "SCORES": scored, "BLOCK": MOST_PARTS}
    return _JOIN.variant(_absent(sampled=sampled, scored=scored), constants, num_warps=1)


@cache
def _launches(
    index: int,
    element: torch.dtype,
    sampled: bool,
    shift: int,
    split: bool,
    scored: bool,
    aligned: bool,
) -> tuple[Any, Any]:
    """What scans parts of rows, and what joins them where there are several."""
    scan = _scanning(
        element, sampled=sampled, shift=shift, split=split, scored=scored, aligned=aligned
    )
    join = _joining(sampled=sampled, scored=scored).on(device_at(index)) if split else None
    return scan.on(device_at(index)), join


def split_of(seqs: int, tiles: int) -> tuple[int, int]:
    """Parts of a row, and tiles a part: enough programs for the device, and no empty part."""
    parts = max(1, min(tiles, MOST_PARTS, PROGRAMS // seqs))
    each = -(-tiles // parts)
    return -(-tiles // each), each


def best(
    logits: Tensor,
    first: int,
    given: tuple[Tensor, Tensor, Tensor] | None,
    ids: Tensor,
    scores: Tensor | None,
) -> None:
    """Writes the choice of each row.

    Args:
        logits: ``[seqs, vocab]``, the last dim dense.
        first: id of the first column.
        given: temperature, seed, position; None for greedy choices.
        ids: int64 ``[seqs]``.
        scores: float32 ``[seqs]`` where wanted.
    """
    seqs, vocab = logits.shape
    shift = first % 4 if given else 0
    parts, tiles = split_of(seqs, -(-(vocab + shift) // BLOCK))
    stride = logits.stride(0)
    aligned = shift == 0 and vocab % 16 == 0
    aligned = aligned and not (logits.data_ptr() | stride * logits.element_size()) & (WIDE - 1)
    scan, join = _launches(
        logits.get_device(),
        logits.dtype,
        given is not None,
        shift,
        parts > 1,
        scores is not None,
        aligned,
    )
    space = ids.new_empty(2 * seqs * parts) if parts > 1 else ids
    heat, seed, position = given or (ids, ids, ids)  # what is absent is never read
    found = ids if scores is None else scores
    scan(
        seqs,  # the first dim of a grid is the one without a limit of 65,535
        parts,
        1,
        logits,
        heat,
        seed,
        position,
        space,
        ids,
        found,
        stride,
        vocab,
        first,
        tiles,
    )
    if join is not None:
        join(seqs, 1, 1, space, heat, ids, found, parts, first)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time; they are the same for every architecture."""
    del arch
    for element in (torch.bfloat16, torch.float32):
        for sampled in (False, True):
            made = _scanning(
                element, sampled=sampled, shift=0, split=True, scored=False, aligned=True
            )
            name = f"best_candidate/scan/{'sampled' if sampled else 'greedy'}/{element}"
            yield name.replace("torch.", ""), made
    yield "best_candidate/join", _joining(sampled=True, scored=False)
