"""What several peers want besides the arguments of an operator: positions, and a scale of 1."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_longest: dict[torch.device, Tensor] = {}


def positions(tokens: int, device: torch.device) -> Tensor:
    """The numbers from 0 on, int64: token ``i`` takes row ``i`` of a table made for this call."""
    found = _longest.get(device)
    if found is None or found.shape[0] < tokens:
        _longest[device] = found = torch.arange(max(4096, 2 * tokens), device=device)
    return found[:tokens]


@cache
def unit_scale(device: torch.device) -> Tensor:
    """The scale of a cache that is not quantised."""
    return torch.ones(1, dtype=torch.float32, device=device)
