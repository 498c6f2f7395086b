"""Memory: what is the same on every device.

``open`` makes what an engine finds under ``dev.memory``.
"""

from __future__ import annotations

import torch

from trivet.memory.budget import Budget, Pressure
from trivet.memory.device import DeviceMemory
from trivet.memory.holdings import Holding, Holdings
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.caches import KvCaches
from trivet.memory.ledger import Ledger, Token
from trivet.settings import read

__all__ = [
    "Budget",
    "DeviceMemory",
    "Holding",
    "Holdings",
    "KvBlocks",
    "KvCaches",
    "Ledger",
    "Pressure",
    "Token",
    "open",
]


def open(  # noqa: A001  # memory.open
    device: torch.device, provided: object = None, *, name: str = ""
) -> DeviceMemory:
    """The memory of a device; every call starts a new ledger.

    Args:
        device: where tensors are made.
        provided: what the plugin's ``trivet_memory`` returned, or None.
        name: the device as trivet names it.
    """
    return DeviceMemory(device, provided, snapshots=read().memory_snapshot, name=name)
