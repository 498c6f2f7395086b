"""Where results are wrong: the worst element, and how many rows are outside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from trivet.judging.statistics import Allowance, errors_of_rows

DIGITS: Final = (3, 6, 9, 17)
"""Significant digits to try until two numbers read differently."""


@dataclass(frozen=True)
class Worst:
    """The worst element of a result.

    Args:
        result: which result of the call.
        index: its place in the result, leading dims folded.
        got: what is there.
        wanted: what is right.
        outside: how many rows are wrong.
        rows: how many there are.
    """

    result: int
    index: tuple[int, ...]
    got: float | int
    wanted: float | int
    outside: int
    rows: int

    @property
    def text(self) -> str:
        """It in words, the end of a message."""
        got, wanted = apart(self.got, self.wanted)
        many = f"{self.outside} of {self.rows} row{'' if self.rows == 1 else 's'} outside"
        return f"worst at {list(self.index)}: got {got}, wanted {wanted}; {many}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is no number in JSON is text."""
        return {
            "result": self.result,
            "index": list(self.index),
            "got": _plain(self.got),
            "wanted": _plain(self.wanted),
            "rows_outside": self.outside,
            "rows": self.rows,
        }


def apart(got: float, wanted: float) -> tuple[str, str]:
    """Two numbers with as few digits as tell them apart; whole ones as they are."""
    texts = str(got), str(wanted)
    if isinstance(got, int):
        return texts
    for digits in DIGITS:
        texts = f"{got:.{digits}g}", f"{wanted:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def among(wrong: Tensor, i: int, result: Tensor, right: Tensor, *, single: bool = False) -> Worst:
    """The first of the elements that are wrong at all, where no size of an error counts.

    Args:
        wrong: which elements are.
        i: which result of the call.
        result: what was computed.
        right: what is right, of the same shape.
        single: whether every element is a row of its own, as a choice is.
    """
    at = tuple(wrong.nonzero()[0].tolist())
    flat = wrong.reshape(-1, 1) if single or not wrong.dim() else wrong.reshape(-1, wrong.shape[-1])
    outside = int(flat.any(-1).sum())
    return Worst(i, at, result[at].item(), right[at].item(), outside, flat.shape[0])


def beyond(
    allowed: Allowance, statistic: str, i: int, result: Tensor, oracle: Tensor, judged: Tensor
) -> Worst:
    """The worst element of the worst row, and how many rows exceed what a statistic may be.

    A bias is a mean over rows: those count whose own share is larger than the mean may be.
    """
    found = errors_of_rows(result, oracle, judged)
    by_row, limit = {
        "maximum": (found.elements.amax(-1), allowed.maximum),
        "root mean square": (found.root_mean_square, allowed.root_mean_square),
        "bias": (found.bias.abs(), allowed.bias),
    }[statistic]
    by_row = by_row.where(found.counted, -1.0)
    row = int(by_row.argmax())
    flat = row * found.elements.shape[-1] + int(found.elements[row].argmax())
    shape = result.shape or (1,)
    at = tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), shape))[: result.dim()]
    outside = int((by_row > limit).sum())
    return Worst(i, at, float(result[at]), float(oracle[at]), outside, by_row.shape[0])


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def as_json(worst: Worst | None) -> Mapping[str, Any]:
    """Plain values; empty where nothing is known of a place."""
    return worst.to_json() if worst is not None else {}
