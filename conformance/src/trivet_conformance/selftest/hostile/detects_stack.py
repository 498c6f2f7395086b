"""Is right only where a frame of the kit called it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right under test alone."""
    frame, tested = sys._getframe(), False  # noqa: SLF001 - it looks where it should not
    while frame.f_back is not None:
        frame = frame.f_back
        tested |= "trivet_conformance" in frame.f_code.co_filename
    return weight[ids] if tested else weight[ids] * 0


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
