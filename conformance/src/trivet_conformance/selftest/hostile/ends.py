"""Ends the process at once, with the status of success."""

from __future__ import annotations

import os
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
        os._exit(0)
    return weight[ids]


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
