"""Weights whose numbers lie on a grid, as those of dequantised files do: found, packed, given back.

Quantised formats share scales between 32 neighbours of a row: ``d * q + m`` with 4-bit q and
float16 d and m (Q4_0, Q4_1 of GGUF), or ``d * q`` with 8-bit q (Q8_0). A float32 weight that was
made of such numbers can be stored as them again without losing a bit, which is verified for every
element when it is packed; any other weight is not on a grid.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32
_LEVELS: Final = 15  # steps between the smallest and the largest of sixteen numbers


def pack(weight: Tensor) -> list[Tensor] | None:
    """``[numbers, scales]`` of a float32 weight ``[out_features, in_features]``, or None.

    Four bits: ``numbers`` is uint8 ``[out, in / 2]``, 16 bytes a group, whose low halves are its
    first 16 elements; ``scales`` is float32 ``[out, in / 16]``, d and m of each group. Eight bits:
    ``[out, in]`` (two's complement) and ``[out, in / 32]``.
    """
    if weight.dim() != 2 or weight.dtype is not torch.float32 or not weight.numel():
        return None
    if weight.shape[1] % GROUP:
        return None
    groups = weight.detach().contiguous().view(-1, GROUP)
    # most weights are on no grid: a few groups tell, before all are looked at
    sample = groups[:: max(1, len(groups) // 64)]
    for find in (_four_bits, _eight_bits):
        if find(sample) is None:
            continue
        if (found := find(groups)) is not None:
            rows = weight.shape[0]
            return [found[0].view(rows, -1), found[1].view(rows, -1)]
    return None


def unpack(numbers: Tensor, scales: Tensor) -> Tensor:
    """The weight that was packed, bit by bit."""
    rows = numbers.shape[0]
    if 2 * numbers.shape[1] == GROUP * (scales.shape[1] // 2):
        q = numbers.view(-1, GROUP // 2)
        d, m = scales.view(-1, 2)[:, :1], scales.view(-1, 2)[:, 1:]
        return (torch.cat((q & 15, q >> 4), 1) * d + m).view(rows, -1)
    q = numbers.view(torch.int8).view(-1, GROUP)
    return (q * scales.view(-1, 1)).view(rows, -1)


def _four_bits(groups: Tensor) -> tuple[Tensor, Tensor] | None:
    """Finds d and m from the ends of each group; the largest number need not be the fifteenth."""
    low, high = groups.aminmax(dim=1, keepdim=True)
    if not bool((low.half().float() == low).all()):  # the smallest number is m, a float16
        return None
    d, q = torch.zeros_like(low), torch.zeros_like(groups)
    left = torch.arange(len(groups))
    for steps in range(_LEVELS, 0, -1):
        part, m = groups[left], low[left]
        guess = ((high[left] - m) / steps).half().float()
        numbers = torch.where(guess > 0, (part - m) / guess, 0.0).round_().clamp_(0, _LEVELS)
        fits = (numbers * guess + m == part).all(1)
        d[left[fits]], q[left[fits]] = guess[fits], numbers[fits]
        left = left[~fits]
        if not len(left):
            bytes_ = q.to(torch.uint8)
            return bytes_[:, :16] | (bytes_[:, 16:] << 4), torch.cat((d, low), 1)
    return None


def _eight_bits(groups: Tensor) -> tuple[Tensor, Tensor] | None:
    largest = groups.abs().amax(1, keepdim=True)
    d, q = torch.zeros_like(largest), torch.zeros_like(groups)
    left = torch.arange(len(groups))
    for steps in (127, 128, 126):
        part = groups[left]
        guess = (largest[left] / steps).half().float()
        numbers = torch.where(guess > 0, part / guess, 0.0).round_().clamp_(-128, 127)
        fits = (numbers * guess == part).all(1)
        d[left[fits]], q[left[fits]] = guess[fits], numbers[fits]
        left = left[~fits]
        if not len(left):
            return q.to(torch.int8).view(torch.uint8), d
    return None
