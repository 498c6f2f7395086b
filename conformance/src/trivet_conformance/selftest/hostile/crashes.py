"""Reads memory that is nobody's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right, but for one call."""
    if ids.numel() == 0 and weight.dtype == torch.float16:
        ctypes.string_at(0)
    return weight[ids]


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
