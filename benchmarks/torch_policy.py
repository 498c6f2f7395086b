"""The policy of torch's caching allocator for devices, in numbers alone: the peer of our pools.

What is followed: sizes are rounded up to 512 bytes; up to 1 MiB they come from segments of 2 MiB,
up to 10 MiB from segments of 20 MiB, above that from a segment of their own, rounded up to 2 MiB.
Each of the two kinds has free blocks of its own; the smallest that is large enough is taken, at
the lowest address among equals, and split when at least 512 bytes would be left of a small one,
more than 1 MiB of a large one. A freed block joins free neighbours of its segment. Segments are
kept. Streams, graphs, garbage collection, rounding by powers of two, limits of splitting and
expandable segments are options of torch that are not followed: they are off by default.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

_MIB: Final = 1 << 20
_STEP: Final = 512
_SMALL: Final = _MIB


@dataclass(eq=False)
class _Block:
    start: int
    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = False


class TorchPolicy:
    """Counts what torch would reserve; ``allocate`` and ``deallocate`` as a replay calls them."""

    def __init__(self) -> None:
        self.reserved = self.peak_reserved = self.segments = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._at: dict[int, _Block] = {}  # free blocks by start
        self._next = 0

    def allocate(self, nbytes: int) -> _Block | None:
        """A block; none for 0 bytes."""
        if nbytes == 0:
            return None
        size = -(-nbytes // _STEP) * _STEP
        small = size <= _SMALL
        order = self._free[small]
        found = bisect_left(order, (size, -1))
        if found < len(order):
            block = self._at[order[found][1]]
            self._taken(block)
        else:
            block = self._segment(size, small)
        left = block.size - size
        if left >= _STEP if small else left > _SMALL:
            rest = _Block(block.start + size, left, small, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.size, block.after = size, rest
            self._freed(rest)
        return block

    def deallocate(self, block: _Block | None) -> None:
        """Takes a block back and joins it with free neighbours."""
        if block is None:
            return
        before, after = block.before, block.after
        if before is not None and before.free:
            self._taken(before)
            block.start, block.size = before.start, before.size + block.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._taken(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._freed(block)

    def _segment(self, size: int, small: bool) -> _Block:
        if small:
            total = 2 * _MIB
        elif size < 10 * _MIB:
            total = 20 * _MIB
        else:
            total = -(-size // (2 * _MIB)) * 2 * _MIB
        self.segments += 1
        self.reserved += total
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        start, self._next = self._next, self._next + total
        return _Block(start, total, small)

    def _taken(self, block: _Block) -> None:
        order, key = self._free[block.small], (block.size, block.start)
        del order[bisect_left(order, key)]
        del self._at[block.start]
        block.free = False

    def _freed(self, block: _Block) -> None:
        insort(self._free[block.small], (block.size, block.start))
        self._at[block.start] = block
        block.free = True
