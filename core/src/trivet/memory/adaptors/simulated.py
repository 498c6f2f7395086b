"""An allocator of addresses without memory, for replays and studies of fragmentation."""

from __future__ import annotations

from typing import Final

import torch

from trivet.contracts.memory import Stats, Tier, Traits
from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.adaptors.adaptor import foreign
from trivet.memory.ranges import Fit, Ranges
from trivet.memory.sizes import whole

_META: Final = torch.device("meta")


class Simulated:
    """Hands out ranges of a pretended address space, as tensors of torch's ``meta`` device.

    One thread at a time. ``address`` tells where a buffer lies; the same calls give the same
    addresses. An empty buffer takes no room, and a tensor costs a few hundred real bytes.

    Args:
        capacity_bytes: of the address space.
        alignment: what every address is a multiple of; sizes are rounded up to it.
        page_bytes: sizes are rounded up to this instead, as a driver does that maps pages.
        fit: ``"first"`` or ``"best"`` fit.
        tier: what its traits say.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        alignment: int = 64,
        page_bytes: int = 0,
        fit: Fit = "first",
        tier: Tier = Tier.DEVICE,
    ) -> None:
        capacity_bytes = whole(capacity_bytes, "a capacity of {} bytes")
        alignment = whole(alignment, "an alignment of {} bytes")
        page_bytes = whole(page_bytes, "a page of {} bytes")
        odd = alignment < 1 or alignment & alignment - 1 or page_bytes % alignment
        if odd:
            msg = f"{capacity_bytes} bytes aligned to {alignment}, pages of {page_bytes}"
            fix = "sizes of 0 or more, an alignment that is a power of two and divides the page"
            raise MemoryFault(msg, fix=fix)
        self.capacity_bytes, self._page = capacity_bytes, page_bytes or alignment
        self._traits = Traits(_META, tier, alignment)
        self._ranges = Ranges(fit)
        self._ranges.give(0, capacity_bytes)
        self._live: dict[int, tuple[torch.Tensor, int, int]] = {}
        self.used_bytes = self.peak_bytes = 0

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        nbytes = whole(nbytes, "a buffer of {} bytes")
        size = -(-nbytes // self._page) * self._page
        start = self._ranges.take(size) if size else 0
        if start is None:
            free = self.capacity_bytes - self.used_bytes
            raise OutOfMemory(
                f"no range of {nbytes} bytes is free, the largest has {self._ranges.largest}",
                requested_bytes=nbytes,
                free_bytes=free,
                limit_bytes=self.capacity_bytes,
                tag=tag,
                retryable=size <= self.capacity_bytes,
                fix="free neighbouring buffers, or raise capacity_bytes",
            )
        buffer = torch.empty(nbytes, dtype=torch.uint8, device=_META)
        self._live[id(buffer)] = buffer, start, start + size
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return buffer

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        known = self._live.pop(id(buffer), None)
        if known is None:
            raise foreign(self, buffer)
        _, start, end = known
        self._ranges.give(start, end)
        self.used_bytes -= end - start

    def address(self, buffer: torch.Tensor) -> int:
        """Where a live buffer starts.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        known = self._live.get(id(buffer))
        if known is None:
            raise foreign(self, buffer)
        return known[1]

    @property
    def fragmentation(self) -> float:
        """The part of the free bytes that lies outside the largest free range: 0 is none."""
        free = self.capacity_bytes - self.used_bytes
        return 1 - self._ranges.largest / free if free else 0.0

    def stats(self) -> Stats:
        """The numbers of this moment."""
        return Stats(self.used_bytes, self.used_bytes, self.peak_bytes, self.peak_bytes)
