"""Blocks of one size."""

from __future__ import annotations

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.adaptors.adaptor import foreign
from trivet.memory.pools.pool import Pool
from trivet.memory.sizes import whole

_Slot = tuple[int, torch.Tensor]  # number of its slab, the whole block


class Fixed(Pool):
    """Cuts slabs into equal blocks; any block does for any request that is no larger.

    The last freed block is the next one. A slab goes back when it is trimmed while none of its
    blocks is live.

    Args:
        upstream: where slabs come from.
        block_bytes: the size of a block; the upstream's alignment divides it after rounding.
        blocks: how many a slab has.
        slabs: how many there may be at once; None is no limit.
        tag: what the upstream is told that the slabs are for.
    """

    def __init__(
        self,
        upstream: Allocator,
        block_bytes: int,
        *,
        blocks: int = 64,
        slabs: int | None = None,
        tag: str = "pool",
    ) -> None:
        super().__init__(upstream, tag=tag)
        block_bytes = whole(block_bytes, "a block of {} bytes")
        blocks = whole(blocks, "a slab of {} blocks")
        slabs = None if slabs is None else whole(slabs, "{} slabs")
        if block_bytes < 1 or blocks < 1:
            msg = f"{slabs} slabs of {blocks} blocks of {block_bytes} bytes cannot be made"
            raise MemoryFault(msg, fix="at least one byte and one block")
        self.block_bytes = self._rounded(block_bytes)
        self._blocks, self._most = blocks, slabs
        self._slabs: dict[int, tuple[torch.Tensor, int]] = {}  # number -> slab, live blocks
        self._free: list[_Slot] = []
        self._live: dict[int, tuple[torch.Tensor, _Slot]] = {}
        self._number = 0

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        if self._rounded(nbytes) > self.block_bytes:
            raise self._full(nbytes, tag, f"blocks have {self.block_bytes} bytes")
        if not self._free:
            self._grow(nbytes, tag)
        slot = self._free.pop()
        number, whole = slot
        view = whole if nbytes == self.block_bytes else whole[:nbytes]
        slab, live = self._slabs[number]
        self._slabs[number] = slab, live + 1
        self._live[id(view)] = view, slot
        self._take(self.block_bytes)
        return view

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        known = self._live.pop(id(buffer), None)
        if known is None:
            raise foreign(self, buffer)
        slot = known[1]
        slab, live = self._slabs[slot[0]]
        self._slabs[slot[0]] = slab, live - 1
        self._free.append(slot)
        self._used -= self.block_bytes

    def trim(self, nbytes: int) -> int:
        """Gives slabs without a live block back, the oldest first; how many bytes."""
        given, size = 0, self.block_bytes * self._blocks
        for number, (slab, live) in list(self._slabs.items()):
            if live or (nbytes and given >= nbytes):
                continue
            self._return(slab, size)
            del self._slabs[number]
            self._free = [slot for slot in self._free if slot[0] != number]
            given += size
        return given

    def _grow(self, nbytes: int, tag: str) -> None:
        if self._most is not None and len(self._slabs) >= self._most:
            raise self._full(nbytes, tag, f"all {self._most * self._blocks} blocks are live")
        size = self.block_bytes
        slab = self._reserve(size * self._blocks)
        self._number = number = self._number + 1
        self._slabs[number] = slab, 0
        starts = range((self._blocks - 1) * size, -1, -size)  # the lowest is taken first
        self._free = [(number, slab[start : start + size]) for start in starts]

    def _full(self, nbytes: int, tag: str, why: str) -> OutOfMemory:
        fits = self._rounded(nbytes) <= self.block_bytes
        return OutOfMemory(
            f"no block for {nbytes} bytes ({tag or 'no tag'}): {why}",
            requested_bytes=nbytes,
            free_bytes=len(self._free) * self.block_bytes if fits else None,
            tag=tag,
            retryable=fits and self._most != 0,
            fix="free a block, or make the pool with more" if fits else "a pool of larger blocks",
        )
