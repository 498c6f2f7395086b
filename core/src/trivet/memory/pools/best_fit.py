"""Best fit with coalescing over segments whose size follows what is in use."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault
from trivet.memory.adaptors.adaptor import foreign
from trivet.memory.pools.pool import Pool
from trivet.memory.ranges import Ranges
from trivet.memory.sizes import whole


@dataclass(frozen=True, slots=True, eq=False)
class _Segment:
    """A piece of the upstream, from ``base`` on in the pool's own address space."""

    piece: torch.Tensor
    base: int
    size: int


class BestFit(Pool):
    """Takes the smallest free range that is large enough and joins what is freed.

    A new segment is a multiple of a grain that grows with the pool: a sixteenth of what it holds,
    as a power of two between the bounds. Small pools waste little, large ones ask seldom. Before
    the pool would hold more than ever, segments that lie empty go back, as none of them fits.

    Args:
        upstream: where segments come from.
        least_bytes: the smallest grain; by default 2 MiB, the pages in which devices map memory.
            A smaller one wastes less where the upstream has smaller pages.
        most_bytes: the largest grain; a request above it gets a segment of its own size, rounded.
        tag: what the upstream is told that the segments are for.
    """

    def __init__(
        self,
        upstream: Allocator,
        *,
        least_bytes: int = 1 << 21,
        most_bytes: int = 1 << 25,
        tag: str = "pool",
    ) -> None:
        super().__init__(upstream, tag=tag)
        least_bytes = whole(least_bytes, "a segment of {} bytes")
        most_bytes = whole(most_bytes, "a segment of {} bytes")
        if not self._alignment <= least_bytes <= most_bytes:
            msg = f"segments between {least_bytes} and {most_bytes} bytes cannot be made"
            raise MemoryFault(msg, fix=f"rising bounds, of {self._alignment} bytes at least")
        self._least, self._most = self._rounded(least_bytes), self._rounded(most_bytes)
        self._ranges = Ranges("best")
        self._segments: list[_Segment] = []  # in rising order of bases
        self._next = 0
        self._live: dict[int, tuple[torch.Tensor, int, int]] = {}

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        del tag  # the upstream knows the pool's
        size = max(self._rounded(nbytes), self._alignment)
        start = self._ranges.take(size)
        if start is None:
            self._grow(size)
            start = self._ranges.take(size)
            assert start is not None  # noqa: S101  # the new segment has it
        segment = self._segments[bisect_right(self._segments, start, key=_base) - 1]
        first = start - segment.base
        view = segment.piece[first : first + nbytes]
        self._live[id(view)] = view, start, start + size
        self._take(size)
        return view

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
        self._used -= end - start

    def trim(self, nbytes: int) -> int:
        """Gives segments that lie empty back, the smallest first; how many bytes."""
        given = 0
        for segment in sorted(self._segments, key=lambda s: (s.size, s.base)):
            if nbytes and given >= nbytes:
                break
            if not self._ranges.remove(segment.base, segment.base + segment.size):
                continue
            try:
                self._return(segment.piece, segment.size)
            except BaseException:
                self._ranges.give(segment.base, segment.base + segment.size)
                raise
            self._segments.remove(segment)
            given += segment.size
        return given

    def _grow(self, need: int) -> None:
        """Adds a segment that has so many bytes."""
        grain = 1 << max(self._reserved // 16, 1).bit_length() - 1
        grain = min(max(grain, self._least), self._most)
        size = self._rounded(-(-need // grain) * grain)
        beyond = self._reserved + size - self._peak_reserved
        if beyond > 0:
            self.trim(beyond)
        piece = self._reserve(size)
        base = self._next
        # the gap keeps ranges of two segments from being joined
        self._next = base + size + self._alignment
        self._segments.append(_Segment(piece, base, size))
        self._ranges.give(base, base + size)


def _base(segment: _Segment) -> int:
    return segment.base
