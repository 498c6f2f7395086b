"""Tensors over a part of a buffer: where they end, and why they are none."""

from __future__ import annotations

import math
from typing import Any

import torch

from trivet.errors import InvalidBuffer
from trivet.plugins.describe import shown


def end_of_part(nbytes: int, shape: Any, dtype: Any, offset: Any) -> int:
    """The byte behind a tensor that lies in a buffer.

    Raises:
        InvalidBuffer: it does not lie in it.
    """
    what = f"{shown(shape)} of {shown(dtype)} at byte {shown(offset)}"
    dims: list[Any] = list(shape) if isinstance(shape, tuple | list) else [None]
    if not all(isinstance(n, int) for n in [*dims, offset]) or not isinstance(dtype, torch.dtype):
        why, fix = "is no part of a buffer", "whole numbers of 0 or more, and a dtype of torch"
    elif min([*dims, offset]) < 0:
        why, fix = "has a negative size or offset", "0 or more; -1 infers nothing here"
    elif offset % dtype.itemsize:
        why, fix = "is not aligned", f"an offset that is a multiple of {dtype.itemsize}"
    else:
        end: int = offset + math.prod(dims) * dtype.itemsize
        if end <= nbytes:
            return end
        why, fix = f"ends at byte {end}, the buffer has {nbytes}", "a larger buffer"
    raise InvalidBuffer(f"{what} {why}", fix=fix)
