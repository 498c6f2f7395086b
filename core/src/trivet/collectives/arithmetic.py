"""Reductions in order of rank, for every dtype that torch can convert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

_NARROW: Final = frozenset({torch.float16, torch.bfloat16})
_SIGNED: Final = MappingProxyType(
    {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
)
"""Torch computes little with these: they are reduced as signed numbers of their size."""


def _prod(total: Tensor, piece: Tensor) -> Tensor:
    return total.mul_(piece)


_STEPS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = MappingProxyType(
    {
        "sum": Tensor.add_,
        "prod": _prod,
        "max": lambda total, piece: torch.maximum(total, piece, out=total),
        "min": lambda total, piece: torch.minimum(total, piece, out=total),
        "band": Tensor.bitwise_and_,
        "bor": Tensor.bitwise_or_,
        "bxor": Tensor.bitwise_xor_,
    }
)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which numbers of a dtype are accumulated: float32 for all that is narrower."""
    if dtype in _NARROW or (dtype.is_floating_point and dtype.itemsize == 1):
        return torch.float32
    return torch.complex64 if dtype == torch.complex32 else dtype


def reduce_in_order(pieces: Tensor, out: Tensor, reduction: str) -> None:
    """``out[i] = reduce over r of pieces[r, i]``, ranks ascending, rounded once at the end.

    Args:
        pieces: ``[ranks, n]``; may be overwritten.
        out: ``[n]``, of the same dtype, apart from ``pieces``.
        reduction: one of ``REDUCTIONS``.
    """
    flip = 0
    if signed := _SIGNED.get(out.dtype):
        pieces, out = pieces.view(signed), out.view(signed)
        if reduction in {"max", "min"}:  # with the top bit flipped, they compare as signed ones
            flip = torch.iinfo(signed).min
            pieces = pieces.bitwise_xor_(flip)
    total = pieces[0].to(wide(out.dtype))
    for piece in pieces[1:]:
        _STEPS[reduction](total, piece.to(total.dtype))
    out.copy_(total)
    if flip:
        out.bitwise_xor_(flip)


def divide(x: Tensor, size: int) -> None:
    """Turn a sum into an average in place; integers are rounded towards zero."""
    if x.dtype == torch.uint64:
        bits = x.view(torch.int64)
        half = bits.bitwise_right_shift(1).bitwise_and_(torch.iinfo(torch.int64).max)
        quotient = half.div_(size, rounding_mode="floor").mul_(2)
        rest = (bits - quotient * size).div_(size, rounding_mode="floor")
        bits.copy_(quotient.add_(rest))
        return
    if signed := _SIGNED.get(x.dtype):
        quotient = x.to(torch.int64).div_(size, rounding_mode="trunc")
        x.view(signed).copy_(quotient)
        return
    if not (x.is_floating_point() or x.is_complex()):
        x.div_(size, rounding_mode="trunc")
    elif wide(x.dtype) == x.dtype:
        x.div_(size)
    else:
        x.copy_(x.to(wide(x.dtype)).div_(size))
