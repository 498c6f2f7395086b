"""torch's own allocators behind the contract: what serves where a vendor brings none."""

from __future__ import annotations

from typing import Final

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.errors import OutOfMemory
from trivet.memory.exhaustion import typed

_ALIGNMENT: Final = 64  # torch aligns host memory to 64 bytes and device memory to 256 or more
_ADDRESSABLE: Final = 1 << 63  # sizes beyond this overflow inside torch and raise something else


class TorchAllocator:
    """Buffers of torch's allocator on any device, or of its pinned host memory.

    Args:
        device: where buffers live.
        pinned: host memory that the current accelerator copies without the processor.
    """

    def __init__(self, device: torch.device, *, pinned: bool = False) -> None:
        host = device.type == "cpu"
        tier = Tier.PINNED if pinned else Tier.HOST if host else Tier.DEVICE
        self._traits = Traits(device, tier, _ALIGNMENT, host_visible=host)
        self._pinned = pinned

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        device = self._traits.device
        if nbytes >= _ADDRESSABLE:
            msg = f"no device can address {nbytes} bytes ({tag or 'no tag'})"
            fix = "look for a product of sizes that was not meant"
            raise OutOfMemory(msg, requested_bytes=nbytes, tag=tag, fix=fix)
        with typed(device, nbytes, tag=tag, free_bytes=None):
            return torch.empty(nbytes, dtype=torch.uint8, device=device, pin_memory=self._pinned)

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Torch frees it with its last reference."""
