"""A right memory of every ability that host memory can have: what variants are made from."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

import torch

from trivet.contracts.memory import MemoryInfo, Stats, Tier, Traits

PAGE: Final = mmap.PAGESIZE
SPAN: Final = 96 << 20
"""Bytes of address space; what is never written is never there."""


@dataclass
class Block:
    """One buffer that was given out.

    Args:
        tensor: the very tensor; it is kept, so that its id stays its own.
        start: its first byte in the address space.
        size: bytes that it takes there.
        resident: whether it has memory.
    """

    tensor: torch.Tensor
    start: int
    size: int
    resident: bool = True


class Pool:
    """First fit over one mapping, with a limit on what has memory."""

    preserves = frozenset({"address"})
    room = 24 << 20
    alignment = 256
    promised = 256
    zeroed = False

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SPAN, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.holes = [(0, SPAN)]  # (start, size), in order, never two that touch
        self.blocks: dict[int, Block] = {}
        self.used = self.peak = 0

    def traits(self) -> Traits:
        """What holds for all buffers."""
        return Traits(
            torch.device("cpu"), Tier.HOST, self.promised, host_visible=True, zeroed=self.zeroed
        )

    def rounded(self, nbytes: int) -> int:
        """The bytes that a buffer takes."""
        return -(-nbytes // self.alignment) * self.alignment

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; see the contract."""
        size = self.rounded(nbytes)
        start = self.place(size, tag)
        return self.hand_out(start, nbytes, size)

    def place(self, size: int, tag: str) -> int:
        """Takes so many bytes of the address space; where they start."""
        hole = next((h for h in self.holes if h[1] >= size), None)
        if hole is None or self.used + size > self.room:
            msg = f"no room for {size} bytes ({tag})"
            raise torch.OutOfMemoryError(msg)
        at = self.holes.index(hole)
        self.holes[at : at + 1] = [(hole[0] + size, hole[1] - size)] if hole[1] > size else []
        return hole[0]

    def hand_out(self, start: int, nbytes: int, size: int) -> torch.Tensor:
        """The tensor over a place, entered and counted."""
        tensor = self._bytes[start : start + nbytes]
        self.blocks[id(tensor)] = Block(tensor, start, size)
        self.used += size
        self.peak = max(self.peak, self.used)
        return tensor

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back; see the contract."""
        block = self.blocks.pop(id(buffer))
        self.used -= block.size if block.resident else 0
        self.put_back(block.start, block.size)

    def put_back(self, start: int, size: int) -> None:
        """Makes a place a hole again, together with those beside it."""
        if not size:
            return
        self.holes = sorted([*self.holes, (start, size)])
        joined = [self.holes[0]]
        for begin, length in self.holes[1:]:
            if sum(joined[-1]) == begin:
                joined[-1] = joined[-1][0], joined[-1][1] + length
            else:
                joined.append((begin, length))
        self.holes = joined

    def drop(self, start: int, size: int) -> None:
        """Gives whole pages of a place back to the system."""
        begin, end = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if end > begin:
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def suspend(self, buffer: torch.Tensor) -> None:
        """Takes its memory away; see the contract."""
        block = self.blocks[id(buffer)]
        self.drop(block.start, block.size)
        block.resident = False
        self.used -= block.size

    def resume(self, buffer: torch.Tensor) -> None:
        """Gives it memory again; see the contract."""
        block = self.blocks[id(buffer)]
        if self.used + block.size > self.room:
            msg = f"no room to resume {block.size} bytes"
            raise torch.OutOfMemoryError(msg)
        block.resident = True
        self.used += block.size
        self.peak = max(self.peak, self.used)

    def trim(self, nbytes: int) -> int:
        """Gives the pages of holes back; see the contract."""
        given = 0
        for start, size in self.holes:
            if given and given >= nbytes > 0:
                break
            self.drop(start, size)
            given += size
        return given

    def info(self) -> MemoryInfo:
        """The numbers of this moment."""
        return MemoryInfo(
            total_bytes=self.room, free_bytes=self.room - self.used, source="a mapping"
        )

    def stats(self) -> Stats:
        """The counts of this moment."""
        return Stats(
            allocated_bytes=self.used, reserved_bytes=SPAN, max_allocated_bytes=self.peak,
            max_reserved_bytes=SPAN,
        )  # fmt: skip


class Bare:
    """An allocator and nothing else: three functions, nobody counts."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def traits(self) -> Traits:
        """As the pool."""
        return self.pool.traits()

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """As the pool."""
        return self.pool.allocate(nbytes, tag=tag)

    def deallocate(self, buffer: torch.Tensor) -> None:
        """As the pool."""
        self.pool.deallocate(buffer)
