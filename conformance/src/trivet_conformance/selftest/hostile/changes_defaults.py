"""Changes what belongs to everybody in the process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right, and rude."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    return weight[ids]


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
