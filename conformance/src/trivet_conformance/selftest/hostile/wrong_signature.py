"""Claims an operator with other parameters than the operator's."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Core's business, before anything runs."""
    return weight[ids]


@implements("rms_norm@1", name="hostile")
def norm(x: Tensor, weight: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Neither the names nor the number of the operator's parameters."""
    del weight, epsilon
    return x


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [norm, hostile, *NEIGHBOURS]
