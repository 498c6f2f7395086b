"""Memory of a Mac's GPU, which is the memory of its processor: told as torch and Metal count it.

Metal lets a process have a part of it, ``recommended_max_memory``; what is beyond can stop the
machine. Whatever lies on the host is taken from the same bytes, so that what is free is never more
than the system has, and copying to the host frees nothing (``MemoryInfo.unified``).
"""

from __future__ import annotations

from typing import Final, Protocol

import torch

from trivet.contracts.memory import MemoryInfo, Stats, Tier, Traits
from trivet.errors import OutOfMemory

ALIGNMENT: Final = 256
"""What Metal's buffers begin at multiples of, whatever their handle is."""

_ADDRESSABLE: Final = 1 << 63  # sizes beyond this overflow inside torch and raise something else
_FIX: Final = (
    "free some of it, or close other programs: the host's memory is the same; "
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO is torch's own limit, and without one the machine can stop"
)


class Counters(Protocol):
    """What ``torch.mps`` answers about memory."""

    def recommended_max_memory(self) -> int:
        """Bytes that Metal lets this process have without harm."""
        ...

    def current_allocated_memory(self) -> int:
        """Bytes in live tensors."""
        ...

    def driver_allocated_memory(self) -> int:
        """Bytes that Metal gave to this process, torch's cache among them."""
        ...

    def empty_cache(self) -> None:
        """Gives the cache back."""
        ...


class MetalMemory:
    """Counts and allocates through ``torch.mps``; a tensor's address there is a handle.

    Args:
        device: where buffers live.
        total_bytes: the memory of the machine; None is unknown.
        counters: who counts; ``torch.mps`` when None.
    """

    def __init__(
        self, device: torch.device, total_bytes: int | None, counters: Counters | None = None
    ) -> None:
        self._total = total_bytes
        self._counters: Counters = torch.mps if counters is None else counters
        host = device.type == "cpu"
        self._traits = Traits(
            device,
            Tier.HOST if host else Tier.DEVICE,
            64 if host else ALIGNMENT,
            host_visible=host,
            addressed=host,
        )

    def info(self) -> MemoryInfo:
        """The numbers of this moment."""
        most = self._counters.recommended_max_memory()
        if self._total is not None:
            most = min(most, self._total)
        left = max(0, most - self._counters.driver_allocated_memory())
        return MemoryInfo(
            total_bytes=self._total,
            free_bytes=left,
            recommended_bytes=most,
            source="torch.mps: what Metal recommends less what it gave; one memory with the host",
            unified=True,
        )

    def stats(self) -> Stats:
        """What is in use; torch counts no peaks here."""
        held = self._counters.current_allocated_memory()
        return Stats(
            allocated_bytes=held,
            reserved_bytes=max(held, self._counters.driver_allocated_memory()),
        )

    def trim(self, nbytes: int) -> int:
        """Gives torch's cache back, all of it: it knows no part."""
        del nbytes
        before = self._counters.driver_allocated_memory()
        self._counters.empty_cache()
        return max(0, before - self._counters.driver_allocated_memory())

    def traits(self) -> Traits:
        """What holds for all buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer of torch's allocator.

        Raises:
            OutOfMemory: there is no room.
        """
        name = tag or "no tag"
        if nbytes >= _ADDRESSABLE:
            msg = f"no device can address {nbytes} bytes ({name})"
            fix = "look for a product of sizes that was not meant"
            raise OutOfMemory(msg, requested_bytes=nbytes, tag=tag, fix=fix)
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._traits.device)
        except RuntimeError as error:
            if "out of memory" not in str(error) and "can't allocate" not in str(error):
                raise
            free = self.info().free_bytes
            msg = f"{nbytes} bytes ({name}) do not fit into the memory of {self._traits.device}"
            raise OutOfMemory(
                msg, requested_bytes=nbytes, free_bytes=free, tag=tag, fix=_FIX
            ) from error

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Torch frees it with its last reference."""
