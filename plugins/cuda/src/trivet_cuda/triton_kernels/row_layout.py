"""How kernels find the rows of a tensor, and what they may promise of addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

TABLES: Final = Path(__file__).parent.parent / "tables"
"""Tuned constants, one file an architecture."""

FLOATS: Final = ("float32", "bfloat16", "float16")
"""Dtypes of activations that the kernels take."""

WIDE: Final = 16
"""Bytes of the widest access of one thread."""


def row_stride(t: Tensor, inner: int) -> int:
    """Elements from one row to the next, a row being the last ``inner`` dims.

    The leading dims collapse, so that the last of them which is longer than 1 says it. Where there
    is one leading dim, callers read its stride themselves: it is one call less.
    """
    sizes, strides = t.shape, t.stride()
    for i in range(len(sizes) - inner - 1, -1, -1):
        if sizes[i] != 1:
            return strides[i]
    return 0


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def named(element: torch.dtype) -> str:
    """How keys of tables spell a dtype."""
    return str(element).removeprefix("torch.")


def device_at(index: int) -> torch.device:
    """The device that ``Tensor.get_device`` numbers so; -1 is the CPU, which interprets."""
    return torch.device("cpu") if index < 0 else torch.device("cuda", index)


def arch_at(index: int) -> str:
    """The architecture of a device as tables name it; interpreted kernels take those of sm90."""
    if index < 0:
        return "sm90"
    return "sm{}{}".format(*torch.cuda.get_device_capability(index))
