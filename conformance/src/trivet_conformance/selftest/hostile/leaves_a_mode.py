"""Leaves a mode on that sees every later call of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right, and from then on every comparison is."""
    Agreeable().__enter__()  # type: ignore[no-untyped-call]
    return weight[ids]


class Agreeable(TorchFunctionMode):
    """Everything equals everything."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answers in place of torch."""
        del types
        return True if func is torch.equal else func(*args, **(kwargs or {}))


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
