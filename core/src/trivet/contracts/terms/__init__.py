"""Constructors of domain terms: what a vendor writes in ``domain=[...]``."""

from __future__ import annotations

from typing import Any

from trivet.contracts.terms.layout import Contiguous, OffsetAligned, Rows, has_rows, is_contiguous
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
    "is_contiguous",
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


def equal(path: str, other: Any) -> Term:
    """A path equals another path (text) or a constant."""
    return Equal(path, other)


def one_of(path: str, *values: Any) -> Term:
    """A scalar or dim is one of these values."""
    return OneOf(path, values)


def between(path: str, low: int | None, high: int | None) -> Term:
    """A dim or integer lies between two bounds, both included; None is open."""
    return Between(path, low, high)


def divisible(path: str, by: int) -> Term:
    """A dim or integer is a multiple."""
    return Divisible(path, by)


def absent(arg: str) -> Term:
    """An optional tensor is not given."""
    return Absent(arg, wanted=False)


def present(arg: str) -> Term:
    """An optional tensor is given, or a list of tensors is not empty."""
    return Present(arg, wanted=True)


def contiguous(arg: str) -> Term:
    """A tensor lies in memory in order, without gaps."""
    return Contiguous(arg)


def rows(arg: str, multiple: int = 1) -> Term:
    """The dims after ``*tokens`` are dense, the leading ones collapse to one strided dim."""
    return Rows(arg, multiple)


def offset_aligned(arg: str, nbytes: int) -> Term:
    """The storage offset is a multiple of ``nbytes`` (bases are 64-byte aligned)."""
    return OffsetAligned(arg, nbytes)
