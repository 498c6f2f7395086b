"""Writes to every descriptor that is open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right, and everywhere."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b'{"what": "end"} junk')
    return weight[ids]


@implements("embedding@1", name="good")
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """A harmless neighbour."""
    return weight[ids]


@implements("silu_and_mul@1", name="good")
def silu_and_mul(x: Tensor) -> Tensor:
    """A harmless neighbour."""
    gate, up = x.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(x.dtype)


def trivet_devices() -> list[DeviceInfo]:
    """The CPU under another name."""
    return [DeviceInfo(__name__, name="made to be hostile")]


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, embedding, silu_and_mul]
