"""Allocators of memory that is farther away than the device: host, shared, disk.

Pinned host memory is ``trivet.memory.torch_allocator.TorchAllocator(device, pinned=True)``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet.memory.tiers.block_files import BlockFiles
    from trivet.memory.tiers.disk import DiskAllocator
    from trivet.memory.tiers.host import HostAllocator
    from trivet.memory.tiers.shared import SharedAllocator

_LAZY: Final = {
    "BlockFiles": "trivet.memory.tiers.block_files",
    "DiskAllocator": "trivet.memory.tiers.disk",
    "HostAllocator": "trivet.memory.tiers.host",
    "SharedAllocator": "trivet.memory.tiers.shared",
}
"""Loaded when used: not every system has what the farther tiers are made of."""

__all__ = ["BlockFiles", "DiskAllocator", "HostAllocator", "SharedAllocator"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
