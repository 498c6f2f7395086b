"""What the references share: promotion, and arithmetic that autocast cannot change."""

from __future__ import annotations

import torch
from torch import Tensor


def up(t: Tensor) -> Tensor:
    """The tensor in at least float32: references compute there and round once at the end."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in the dtype of ``a``, whatever autocast says."""
    if torch.is_autocast_enabled(a.device.type):
        with torch.autocast(a.device.type, enabled=False):
            return torch.matmul(a, b)
    return torch.matmul(a, b)


def linear_map(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in the dtype of ``x``, whatever autocast says."""
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias)
