"""How kernels find the rows of a tensor, and what they may promise of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from trivet.contracts.terms import has_rows
from trivet.errors import DomainError

FLOATS: Final = ("float32", "float16", "bfloat16")
"""Dtypes of activations and weights that the kernels take."""

WIDE: Final = 16
"""Bytes of the widest access of one thread."""


def row_stride(t: Tensor, inner: int = 1) -> int:
    """Elements from one row to the next, a row being the last ``inner`` dims; 0 if it is alone.

    The leading dims collapse, so that the last of them which is longer than 1 says it. Where there
    is one leading dim, hot callers read its stride themselves: it is one call less.
    """
    sizes, strides = t.shape, t.stride()
    for i in range(len(sizes) - inner - 1, -1, -1):
        if sizes[i] != 1:
            return strides[i]
    return 0


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


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def named(element: torch.dtype) -> str:
    """How keys of tables spell a dtype."""
    return str(element).removeprefix("torch.")
