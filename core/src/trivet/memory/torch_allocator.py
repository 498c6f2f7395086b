"""torch's own allocators behind the contract: what serves where a vendor brings none."""

from __future__ import annotations

from typing import Final

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.exhaustion import typed
from trivet.memory.sizes import whole

_ALIGNMENT: Final = 64  # torch aligns host memory to 64 bytes and device memory to 256 or more
_ADDRESSABLE: Final = 1 << 63  # sizes beyond this overflow inside torch and raise something else


class TorchAllocator:
    """Buffers of torch's allocator on any device, or of its pinned host memory.

    Args:
        device: where buffers live; ``dev.torch`` is a device's.
        pinned: host memory that the current accelerator copies without the processor.
    """

    def __init__(self, device: torch.device | str, *, pinned: bool = False) -> None:
        device = torch.device(device)
        host = device.type == "cpu"
        tier = Tier.PINNED if pinned else Tier.HOST if host else Tier.DEVICE
        self._traits = Traits(device, tier, _ALIGNMENT, host_visible=host)
        self._pinned = pinned

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        device, nbytes = self._traits.device, whole(nbytes, "a buffer of {} bytes")
        if nbytes >= _ADDRESSABLE:
            msg = f"no device can address {nbytes} bytes ({tag or 'no tag'})"
            fix = "look for a product of sizes that was not meant"
            raise OutOfMemory(msg, requested_bytes=nbytes, tag=tag, fix=fix)
        with typed(device, nbytes, tag=tag, free_bytes=None):
            return torch.empty(nbytes, dtype=torch.uint8, device=device, pin_memory=self._pinned)

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Torch frees it with its last reference."""

    preserves: frozenset[str] = frozenset({"tensors"})
    """Views outlast a suspension; the address may be another one."""

    def suspend(self, buffer: torch.Tensor) -> None:
        """Gives its memory back; no view of it is read until ``resume``: torch does not check."""
        empty_storage(buffer.untyped_storage())

    def resume(self, buffer: torch.Tensor) -> None:
        """Gives it memory again, with any contents."""
        fill_storage(buffer.untyped_storage(), buffer.numel(), tag="")


def empty_storage(storage: torch.UntypedStorage) -> None:
    """Gives the memory of a storage back; every tensor over it stays as an object.

    Raises:
        MemoryFault: its memory is not torch's (a mapped file, another library); it stays.
    """
    if not storage.resizable():
        msg = (
            f"the memory of {storage.nbytes()} bytes on {storage.device} is not torch's alone: "
            "a mapped file, another library's, or numpy() was taken of it"
        )
        raise MemoryFault(msg, fix="copy it into memory of torch, or leave it awake")
    storage.resize_(0)


def fill_storage(storage: torch.UntypedStorage, nbytes: int, *, tag: str) -> None:
    """Gives a storage memory again, with any contents.

    Raises:
        OutOfMemory: there is no room; it stays empty.
    """
    with typed(storage.device, nbytes, tag=tag, free_bytes=None):
        storage.resize_(nbytes)
