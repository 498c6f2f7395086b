"""Bump allocation: buffers that end together."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.adaptors.adaptor import foreign
from trivet.memory.pools.pool import Pool


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in an arena to go back to; made by ``Arena.mark``."""

    arena: Arena
    count: int
    number: int


class Arena(Pool):
    """One piece of memory that is filled from its lower end.

    A freed buffer's room comes back once everything above it was freed, too, or by ``reset``.

    Args:
        upstream: where the piece comes from, at the first allocation.
        capacity_bytes: its size.
        tag: what the upstream is told that it is for.
    """

    def __init__(self, upstream: Allocator, capacity_bytes: int, *, tag: str = "arena") -> None:
        super().__init__(upstream, tag=tag)
        self.capacity_bytes = self._rounded(capacity_bytes)
        self._piece: torch.Tensor | None = None
        self._top = 0
        # Buffers from the bottom up; a freed one stays as None until it is on top.
        self._stack: list[tuple[int, int, torch.Tensor | None]] = []  # start, number, view
        self._number = 0
        self._place: dict[int, int] = {}  # id of a live view -> index in the stack

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        size = self._rounded(nbytes)
        free = self.capacity_bytes - self._top
        if size > free:
            raise OutOfMemory(
                f"the arena has no {nbytes} bytes left ({tag or 'no tag'})",
                requested_bytes=nbytes,
                free_bytes=free,
                limit_bytes=self.capacity_bytes,
                tag=tag,
                retryable=size <= self.capacity_bytes,
                fix="reset it to a mark, or make it larger",
            )
        if self._piece is None:
            self._piece = self._reserve(self.capacity_bytes)
        start = self._top
        view = self._piece[start : start + nbytes]
        self._place[id(view)] = len(self._stack)
        self._number += 1
        self._stack.append((start, self._number, view))
        self._top = start + size
        self._take(size)
        return view

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones; a ``reset`` ended it, perhaps.
        """
        at = self._place.pop(id(buffer), None)
        if at is None:
            raise foreign(self, buffer)
        start, number, _ = self._stack[at]
        self._stack[at] = start, number, None
        self._used -= self._rounded(buffer.numel())
        self._sink()

    def mark(self) -> Mark:
        """This moment, to go back to; it ends with the buffer that was the last one before it."""
        return Mark(self, len(self._stack), self._stack[-1][1] if self._stack else 0)

    def reset(self, mark: Mark | None = None) -> int:
        """Ends every buffer that was allocated since a mark, or all; how many bytes they had.

        Raises:
            MemoryFault: the mark is another arena's, or the buffer under it has ended.
        """
        kept = mark.count if mark else 0
        if mark and (mark.arena is not self or not self._reached(mark)):
            msg = "the mark is none of this arena, or the buffer under it has ended"
            raise MemoryFault(msg, fix="take a new mark")
        before = self._used
        for start, _, view in reversed(self._stack[kept:]):
            if view is not None:
                del self._place[id(view)]
                self._used -= self._rounded(view.numel())
            self._top = start
        del self._stack[kept:]
        self._sink()  # what lies under the mark may have been freed meanwhile
        return before - self._used

    def trim(self, nbytes: int) -> int:
        """Gives the piece back if nothing in it is live; how many bytes."""
        del nbytes
        if self._piece is None or self._stack:
            return 0
        self._return(self._piece, self.capacity_bytes)
        self._piece = None
        return self.capacity_bytes

    def _reached(self, mark: Mark) -> bool:
        under = self._stack[mark.count - 1 : mark.count]
        return mark.count == 0 or (bool(under) and under[0][1] == mark.number)

    def _sink(self) -> None:
        """Lowers the top over buffers that were freed."""
        while self._stack and self._stack[-1][2] is None:
            self._top, _, _ = self._stack.pop()
