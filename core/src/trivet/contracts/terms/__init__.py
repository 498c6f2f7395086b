"""Constructors of domain terms: what a vendor writes in ``domain=[...]``."""

from __future__ import annotations

from typing import Any

from trivet.contracts.terms.layout import Contiguous, OffsetAligned, Rows, has_rows
from trivet.contracts.terms.term import (
    PRESENT,
    UNKNOWN,
    Decision,
    Interval,
    Layout,
    Reader,
    Term,
    View,
)
from trivet.contracts.terms.value import (
    Absent,
    Between,
    Divisible,
    Dtype,
    Equal,
    OneOf,
    Present,
    Rank,
)

__all__ = [
    "PRESENT",
    "UNKNOWN",
    "Decision",
    "Interval",
    "Layout",
    "Reader",
    "Term",
    "View",
    "absent",
    "between",
    "contiguous",
    "divisible",
    "dtype",
    "equal",
    "has_rows",
    "offset_aligned",
    "one_of",
    "present",
    "rank",
    "rows",
]


def dtype(arg: str, *names: str) -> Term:
    """The dtype of a tensor is one of these names."""
    return Dtype(arg, names)


def rank(arg: str, *ranks: int) -> Term:
    """The number of dims of a tensor is one of these."""
    return Rank(arg, ranks)


def one_of(path: str, *values: Any) -> Term:
    """A scalar or dim is one of these values."""
    return OneOf(path, values)


equal, between, divisible = Equal, Between, Divisible
absent, present = Absent, Present
contiguous, rows, offset_aligned = Contiguous, Rows, OffsetAligned
