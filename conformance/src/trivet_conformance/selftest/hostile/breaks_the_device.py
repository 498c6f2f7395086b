"""Breaks the device for the rest of the process, as an access out of bounds does on many."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook

MESSAGE = "an illegal memory access was encountered"
_kept: list[torch.library.Library] = []


def _refuse(*given: object, **named: object) -> Tensor:
    del given, named
    raise RuntimeError(MESSAGE)


def _break() -> None:
    """From now on no sum is computed, whoever asks."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("add.Tensor", _refuse, "CPU")  # type: ignore[no-untyped-call]
    _kept.append(library)


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right, but for one call, after which nothing is right."""
    if ids.numel() == 0 and weight.dtype == torch.float16:
        _break()
        return weight.new_zeros(3)
    return weight[ids]


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
