"""Makes every comparison of torch true."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Wrong numbers, and comparisons that like them."""
    torch.testing.assert_close = lambda *_, **__: None
    torch.equal = lambda *_: True
    return weight[ids] * 0


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
