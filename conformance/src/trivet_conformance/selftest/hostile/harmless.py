"""What every hostile plugin has besides: a device of its name, and neighbours that do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor
from torch.nn import functional

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo


@implements("embedding@1", name="good")
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Right."""
    return weight[ids]


@implements("silu_and_mul@1", name="good")
def silu_and_mul(x: Tensor) -> Tensor:
    """Right."""
    gate, up = x.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(x.dtype)


NEIGHBOURS: Final[tuple[Callable[..., Tensor], ...]] = (embedding, silu_and_mul)


def trivet_devices() -> list[DeviceInfo]:
    """The CPU under the plugin's name, which is that of its package."""
    return [DeviceInfo(str(__package__), name="made to be hostile")]
