"""Error statistics of a result against an fp64 oracle, and the budget that they are held to.

Rows are the last dim. With the oracle ``o``, its row scale ``s = max|o|`` and the error
``d = y - o``: ``maximum`` is the largest ``|d| / s``, ``root_mean_square`` the largest
``||d|| / ||o||`` of a row, and ``bias`` the size of the mean of ``<d, o> / <o, o>`` over the rows.
The budget is measured, not guessed: a factor times the worst that the reference does in the same
dtype, plus a floor of a few roundings. Nothing is absolute: an error counts by its row's scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

BIAS_ELEMENTS: Final = 1024
"""Fewer elements than this say nothing about a bias."""

BLUNT: Final = 1 / 16
"""A reference that is off by this much of a row's scale cannot say what is right there."""

DRAWS: Final = 8
"""Fresh draws of the reference; from one alone legal code is refused (its bias may be lucky)."""

MORE_DRAWS: Final = 24
"""Draws where results are small: few numbers may all be lucky."""

SMALL: Final = 256
"""Elements below which results are small."""

FINITE, NAN, POSITIVE, NEGATIVE = range(4)


def rounding(dtype: torch.dtype) -> float:
    """Half of the smallest relative distance of two numbers: 2^-25, 2^-12, 2^-9."""
    return torch.finfo(dtype).eps / 4


@dataclass(frozen=True)
class Errors:
    """The three statistics of one result."""

    maximum: float = 0.0
    root_mean_square: float = 0.0
    bias: float = 0.0

    @classmethod
    def worst(cls, several: Iterable[Errors]) -> Errors:
        """The largest of each statistic."""
        rows = [(e.maximum, e.root_mean_square, e.bias) for e in several] or [(0.0, 0.0, 0.0)]
        return cls(*(max(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True)
class RowErrors:
    """The statistics of every row.

    Args:
        elements: for each element, its error by the scale of its row; (rows, width).
        root_mean_square: for each row.
        bias: for each row, signed: the mean over the rows is the statistic.
        counted: which rows have an element that is judged.
    """

    elements: Tensor
    root_mean_square: Tensor
    bias: Tensor
    counted: Tensor


def errors(result: Tensor, oracle: Tensor, judged: Tensor) -> Errors:
    """Measures a result; the arguments are those of ``errors_of_rows``."""
    if not result.numel():
        return Errors()
    found = errors_of_rows(result, oracle, judged)
    if not bool(found.counted.any()):
        return Errors()
    return Errors(
        maximum=float(found.elements.amax()),
        root_mean_square=float(found.root_mean_square.amax()),
        bias=abs(float(found.bias[found.counted].mean())),
    )


def errors_of_several(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Errors]:
    """Measures results of equal shape and dtype, each against its oracle, where they are judged."""
    near, right = (torch.stack(column) for column in zip(*pairs, strict=True))
    if not near.numel():
        return [Errors()] * len(pairs)
    found = errors_of_rows(near, right, judged_elements(near, right))
    counts = found.counted.reshape(len(pairs), -1)
    totals = found.bias.where(found.counted, 0.0).reshape(counts.shape).sum(-1)
    columns = (
        found.elements.reshape(len(pairs), -1).amax(-1),
        found.root_mean_square.reshape(counts.shape).amax(-1),
        (totals / counts.sum(-1).clamp_min(1)).abs(),
    )
    return [Errors(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def errors_of_rows(result: Tensor, oracle: Tensor, judged: Tensor) -> RowErrors:
    """Measures each row of a result that has elements.

    Args:
        result: what was computed, in its own dtype.
        oracle: what is right, float64, of the same shape.
        judged: which elements count; the others are compared by kind of number, not by value.

    A row's scale is never taken smaller than the smallest normal number of the result's dtype:
    below it the dtype's own distances are absolute.
    """
    smallest = torch.finfo(result.dtype).tiny
    shape = (-1, result.shape[-1]) if result.dim() else (1, 1)
    keep, o = judged.reshape(shape), oracle.reshape(shape)
    d = result.double().reshape(shape) - o
    if not bool(keep.all()):
        o, d = o.where(keep, 0.0), d.where(keep, 0.0)
    scale = o.abs().amax(-1).clamp_min(smallest)
    count = keep.sum(-1)
    # Rows are divided by their scale before anything is squared: no overflow, no underflow.
    d, o = d / scale[:, None], o / scale[:, None]
    floor = (smallest / scale).pow(2) * count.clamp_min(1)
    power = torch.maximum(o.pow(2).sum(-1), floor)
    return RowErrors(
        elements=d.abs(),
        root_mean_square=d.pow(2).sum(-1).sqrt() / power.sqrt(),
        bias=(d * o).sum(-1) / power,
        counted=count > 0,
    )


def row_errors(
    result: Tensor, oracle: Tensor, judged: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """For each element, the largest error of its row by the row's scale.

    ``dtype`` says whose smallest normal number bounds the scale; by default the result's.
    """
    if not result.numel():
        return torch.zeros(result.shape, dtype=torch.float64)
    smallest = torch.finfo(dtype or result.dtype).tiny
    o = oracle.where(judged, 0.0)
    d = (result.double() - oracle).where(judged, 0.0).abs()
    scale = o.abs().amax(-1, keepdim=True).clamp_min(smallest)
    return (d / scale).amax(-1, keepdim=True).expand(result.shape)


@dataclass(frozen=True)
class Allowance:
    """How large each statistic may be."""

    maximum: float
    root_mean_square: float
    bias: float

    @classmethod
    def from_native(cls, native: Errors, dtype: torch.dtype, factor: float) -> Allowance:
        """The budget from the reference's worst: factor times it, plus 2u, u and u."""
        u = rounding(dtype)
        return cls(
            maximum=factor * native.maximum + 2 * u,
            root_mean_square=factor * native.root_mean_square + u,
            bias=factor * native.bias + u,
        )

    def used(self, found: Errors, elements: int) -> tuple[float, str]:
        """The largest share of the budget that was used, and by which statistic."""
        shares = {
            "maximum": found.maximum / self.maximum,
            "root mean square": found.root_mean_square / self.root_mean_square,
        }
        if elements >= BIAS_ELEMENTS:
            shares["bias"] = found.bias / self.bias
        name = max(shares, key=shares.__getitem__)
        return shares[name], name


def kinds(t: Tensor) -> Tensor:
    """The kind of each number: finite, NaN, +Inf or -Inf.

    A sum that is finite has finite terms alone: one pass tells what holds nearly always.
    """
    if not t.dtype.is_floating_point or math.isfinite(float(t.sum())) or bool(t.isfinite().all()):
        return torch.full(t.shape, FINITE, dtype=torch.uint8)
    infinite = t.isinf() * torch.where(t > 0, POSITIVE, NEGATIVE)
    return (t.isnan() * NAN + infinite).to(torch.uint8)


def same_bits(a: Tensor, b: Tensor, *, any_nan: bool = False) -> Tensor:
    """Which elements are equal bit by bit; with ``any_nan`` a NaN equals every other NaN."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    equal = a.contiguous().view(integer) == b.contiguous().view(integer)
    if any_nan and a.dtype.is_floating_point:
        equal |= a.isnan() & b.isnan()
    return equal


def judged_elements(native: Tensor, oracle: Tensor) -> Tensor:
    """Elements whose value counts.

    They are finite in the oracle and in the reference, and in a row in which the reference is
    near the oracle; where it overflowed or underflowed on the way, any value would do.
    """
    finite = (kinds(oracle) == FINITE) & (kinds(native) == FINITE)
    return finite & (row_errors(native, oracle, finite) <= BLUNT)
