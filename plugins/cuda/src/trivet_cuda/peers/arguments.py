"""What several peers want besides the arguments of an operator: positions, and a scale of 1.

A tensor that is kept is never released, since a captured graph may read it, and none is kept that
was made inside a capture: its memory is the graph's, and its numbers are there after a replay only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_positions: dict[torch.device, list[Tensor]] = {}
"""By device; each is longer than those before it."""
_units: dict[torch.device, Tensor] = {}


def positions(tokens: int, device: torch.device) -> Tensor:
    """The numbers from 0 on, int64: token ``i`` takes row ``i`` of a table made for this call."""
    kept = _positions.setdefault(device, [])
    if not kept or kept[-1].shape[0] < tokens:
        if _captured(device):
            return torch.arange(tokens, device=device)
        kept.append(torch.arange(max(4096, 2 * tokens), device=device))
    return kept[-1][:tokens]


def unit_scale(device: torch.device) -> Tensor:
    """The scale of a cache that is not quantised."""
    if device in _units:
        return _units[device]
    made = torch.ones(1, dtype=torch.float32, device=device)
    if not _captured(device):
        _units[device] = made
    return made


def _captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
