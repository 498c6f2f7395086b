"""Casts of the narrow float formats of Triton, with torch as the reference.

Triton keeps bfloat16 and the 8-bit formats as unsigned integers while it interprets. Nothing
here needs Triton: formats are named as Triton names them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

NARROW = MappingProxyType(
    {
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
        "fp8e5": torch.float8_e5m2,
        "fp8e4b8": torch.float8_e4m3fnuz,
        "fp8e5b16": torch.float8_e5m2fnuz,
    }
)
"""Formats that numpy has no type for, by Triton's name."""

_STORED = {1: torch.uint8, 2: torch.int16}


def convert(array: Any, source: str, target: str) -> Any:
    """Converts a numpy array as ``torch.Tensor.to`` does: to nearest, ties to even.

    Out of range, infinity and NaN become what torch makes of them; that differs between the
    8-bit formats, so a kernel should clamp before it casts.

    Args:
        array: values; formats of ``NARROW`` as unsigned integers of their width.
        source: Triton's name of the format of ``array``.
        target: Triton's name of the wanted format, one of ``NARROW`` or ``"fp16"``, ``"fp32"``,
            ``"fp64"``, ``"int32"``, ``"int64"``.
    """
    flat = torch.from_numpy(array.copy().reshape(-1).view(_signed(array)))
    values = flat.view(NARROW[source]) if source in NARROW else flat
    if target not in NARROW:
        return values.to(_plain(target)).numpy().reshape(array.shape)
    made = values.to(NARROW[target])
    bits = made.view(_STORED[made.element_size()]).numpy()
    return bits.view(f"u{made.element_size()}").reshape(array.shape)


def truncated(array: Any) -> Any:
    """Rounds float32 to bfloat16 towards zero: the upper half of the bits; NaN stays NaN."""
    bits = array.copy().view("u4")
    # the mark of a NaN may lie in the lower half alone
    quiet = ((bits & 0x7FFF_FFFF) > 0x7F80_0000) * 0x0040_0000
    return ((bits | quiet.astype("u4")) >> 16).astype("u2")


def _signed(array: Any) -> str:
    """The type under which torch takes the bits: it has bfloat16 views of int16 only."""
    return "i2" if array.dtype.str[1:] == "u2" else str(array.dtype)


def _plain(name: str) -> torch.dtype:
    names = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "int1": "bool"}
    found: torch.dtype = getattr(torch, names.get(name, name))
    return found
