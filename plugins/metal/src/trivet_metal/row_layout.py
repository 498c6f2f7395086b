"""How operators find the rows of a tensor, and how many threads take a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from trivet.contracts.terms import has_rows
from trivet.errors import DomainError

SIMD: Final = 32
MOST: Final = 1024
_TILE: Final = 256


def row_stride(t: Tensor, inner: int = 1) -> int:
    """Elements from one row to the next, a row being the last ``inner`` dims; 0 if it is alone.

    The leading dims collapse, so that the last of them which is longer than 1 says it.
    """
    sizes, strides = t.shape, t.stride()
    for i in range(len(sizes) - inner - 1, -1, -1):
        if sizes[i] != 1:
            return strides[i]
    return 0


def group_for(elements: int, each: int = 4) -> int:
    """Threads that take a row, some elements each: whole simdgroups, by the row's length alone."""
    return min(MOST, SIMD * max(1, -(-elements // (each * SIMD))))


def rows_of(out: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors of ``out`` themselves: no term of a domain speaks of a list.

    Raises:
        DomainError: one has no dense rows.
    """
    for i, t in enumerate(out):
        if not t.is_contiguous() and not has_rows(t.shape, t.stride(), 1, 1):
            msg = f"out[{i}] has no dense rows: shape {list(t.shape)}, strides {list(t.stride())}"
            raise DomainError(msg, fix="give contiguous tensors, or rows of a wider one")
    return out


def tile(width: int, rows: int) -> tuple[int, int]:
    """A group of threads over some columns of some rows, no more of them than there are."""
    columns = min(_TILE, 1 << max(width - 1, 0).bit_length())
    return min(columns, width), min(_TILE // columns, rows)
