"""Second formulas of the sampling operators, and how far apart scores may be confused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from trivet.catalogue.philox import gumbel
from trivet.contracts.cases import Scores

CLOSE: Final = 2.0**-20
"""Scores nearer than this, by the size of what they are summed of, float32 does not tell apart."""

SLACK: Final = 2.0**-16
"""How far float32 sums may move ``top_p``, and float32 exponentials ``min_p``, relatively."""


def _words(seed: int, position: int, block: int) -> list[int]:
    """Philox4x32-10 on whole numbers."""
    word, two = 2**32, 2**64
    key = [seed % two % word, seed % two // word]
    x = [block, 0, position % two % word, position % two // word]
    for r in range(10):
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        k = (key[0] + r * 0x9E3779B9) % word, (key[1] + r * 0xBB67AE85) % word
        x = [b // word ^ x[1] ^ k[0], b % word, a // word ^ x[3] ^ k[1], a % word]
    return x


def _noise(seed: int, position: int, ids: Sequence[int]) -> Iterator[float]:
    known: dict[int, list[int]] = {}
    for token in ids:
        block = token // 4
        if block not in known:
            known = {block: _words(seed, position, block)}
        u = (2 * (known[block][token % 4] // 512) + 1) / 2**24
        yield -math.log(-math.log(u))


def _largest(values: Sequence[float]) -> int:
    """Walks a row and keeps the first of the largest; a NaN beats everything."""
    best = 0
    for i, value in enumerate(values):
        if math.isnan(value):
            return i
        if value > values[best]:
            best = i
    return best


def _keep(row: list[float], heat: float, k: int, p: float, least: float) -> list[int]:
    """Ids that the limits keep, token by token from the likeliest."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if k > 0:
        order = order[:k]
    weights = [math.exp((row[i] - row[order[0]]) / heat) for i in order]
    total, reached = math.fsum(weights), 0.0
    kept: list[int] = []
    for token, weight in zip(order, weights, strict=True):
        if kept and ((p < 1 and reached >= p * total) or weight < least):
            break
        kept.append(token)
        reached += weight
    return sorted(kept)


def _numbers(t: Tensor | None, count: int, default: float) -> list[float]:
    return [default] * count if t is None else t.tolist()


def token_oracle(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Walks each row, in Python's own numbers."""
    n = logits.shape[0]
    rows = zip(
        logits.tolist(),
        _numbers(temperature, n, 0.0),
        _numbers(top_k, n, 0),
        _numbers(top_p, n, 1.0),
        _numbers(min_p, n, 0.0),
        _numbers(seed, n, 0),
        _numbers(position, n, 0),
        strict=True,
    )
    picks = []
    for row, heat, k, p, least, key, place in rows:
        best = _largest(row)
        if heat and math.isfinite(row[best]):
            kept = _keep(row, heat, int(k), p, least)
            noise = _noise(int(key), int(place), kept)
            scores = [row[i] / heat + g for i, g in zip(kept, noise, strict=True)]
            best = kept[_largest(scores)]
        picks.append(best)
    return torch.tensor(picks, dtype=torch.int64)


def part_oracle(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Walks each row, in Python's own numbers."""
    n = logits.shape[0]
    heats, keys = _numbers(temperature, n, 0.0), _numbers(seed, n, 0)
    found, picks = [], []
    for row, heat, key, place in zip(
        logits.tolist(), heats, keys, _numbers(position, n, 0), strict=True
    ):
        scores, best = row, _largest(row)
        if heat and math.isfinite(row[best]):
            noise = _noise(int(key), int(place), range(first, first + len(row)))
            scores = [value / heat + g for value, g in zip(row, noise, strict=True)]
            best = _largest(scores)
        found.append(scores[best])
        picks.append(first + best)
    return torch.tensor(found).float(), torch.tensor(picks, dtype=torch.int64)


def scores(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Scores:
    """Bounds of every token's score; no bound where a limit, moved by SLACK, decides otherwise."""
    lower, upper = _bounds(logits, 0, temperature, seed, position)
    if temperature is None or not logits.shape[0]:
        return Scores(lower, upper)
    sampled = _sampled(logits, temperature)
    heat = temperature.double().where(temperature != 0, 1.0).unsqueeze(-1)
    for bound, factor in ((lower, 1 - SLACK), (upper, 1 + SLACK)):
        out = ~_possible(logits, heat, (top_k, top_p, min_p), factor)
        bound.masked_fill_(out & sampled, -torch.inf)
    return Scores(lower, upper)


def part_scores(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Scores:
    """Bounds of the score of every token of a part."""
    return Scores(*_bounds(logits, first, temperature, seed, position), first)


def _sampled(logits: Tensor, temperature: Tensor) -> Tensor:
    return ((temperature != 0) & logits.amax(-1).isfinite()).unsqueeze(-1)


def _bounds(
    logits: Tensor,
    first: int,
    temperature: Tensor | None,
    seed: Tensor | None,
    position: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Greedy scores are exact; others as near as float32 computes their two summands."""
    logits = logits.double()
    if temperature is None or seed is None or position is None or not logits.shape[0]:
        return logits.clone(), logits.clone()
    heat = temperature.double().where(temperature != 0, 1.0).unsqueeze(-1)
    z = logits / heat
    g = gumbel(seed, position, first, logits.shape[-1], torch.float64)
    error = CLOSE * (1 + z.abs().clamp_max(torch.finfo(torch.float32).max) + g.abs())
    sampled, largest = _sampled(logits, temperature), torch.finfo(torch.float32).max
    low, high = (z + g - error).clamp_max(largest), z + g + error
    high = high.masked_fill(high >= largest, torch.inf)  # it overflows in float32
    return low.where(sampled, logits), high.where(sampled, logits)


def _possible(
    logits: Tensor,
    heat: Tensor,
    limits: tuple[Tensor | None, Tensor | None, Tensor | None],
    factor: float,
) -> Tensor:
    """Tokens that limits keep which are wider by a factor.

    Token by token this counts what lies before it, without the reference's scatter.
    """
    top_k, top_p, min_p = limits
    order = torch.argsort(-logits.double(), dim=-1, stable=True)
    rank = torch.argsort(order, -1)
    weight = ((logits.double() - logits.double().amax(-1, keepdim=True)) / heat).exp()
    keep = torch.ones_like(weight, dtype=torch.bool)
    if top_k is not None:
        k = top_k.unsqueeze(-1)
        keep = (rank < k) | (k <= 0)
    inside = keep.clone()
    if top_p is not None:
        p = top_p.double().unsqueeze(-1)
        mass = weight.masked_fill(~keep, 0.0).gather(-1, order)
        before = (mass.cumsum(-1) - mass).gather(-1, rank) / mass.sum(-1, keepdim=True)
        inside &= (before < p * factor) | (p >= 1)
    if min_p is not None:
        least = min_p.double().unsqueeze(-1)
        inside &= (weight * factor >= least) | (least == 0)
    return inside | (rank == 0)
