"""Free ranges of one address space, found by best or first fit."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Literal

Fit = Literal["best", "first"]


class Ranges:
    """Which addresses are free; two that touch are one, so that no neighbour is ever missed.

    Best fit takes the smallest range that is large enough, first fit the one at the lowest
    address; among equals the lowest address wins, so that the same calls give the same answers.

    Args:
        fit: ``"best"`` or ``"first"``.
    """

    def __init__(self, fit: Fit = "best") -> None:
        self._best = fit == "best"
        self._ends: dict[int, int] = {}  # start -> end
        self._starts: dict[int, int] = {}  # end -> start
        self._order: list[tuple[int, int]] = []  # (size, start), or (start, size)

    def give(self, start: int, end: int) -> tuple[int, int]:
        """Makes addresses free; the whole free range in which they now lie."""
        if start == end:
            return start, end
        before = self._starts.get(start)
        if before is not None:
            self._drop(before, start)
            start = before
        after = self._ends.get(end)
        if after is not None:
            self._drop(end, after)
            end = after
        self._ends[start], self._starts[end] = end, start
        insort(self._order, self._key(start, end))
        return start, end

    def take(self, nbytes: int) -> int | None:
        """Takes so many from a range, at its lower end; where they start, or None."""
        found = self._find(nbytes)
        if found is None:
            return None
        start, end = found
        self._drop(start, end)
        self.give(start + nbytes, end)
        return start

    def remove(self, start: int, end: int) -> bool:
        """Takes exactly this range, if it is free as a whole and no part of a larger one."""
        if self._ends.get(start) != end:
            return False
        self._drop(start, end)
        return True

    @property
    def largest(self) -> int:
        """Bytes of the largest range, 0 where none is free."""
        return max((end - start for start, end in self), default=0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every free range as start and end, in the order of addresses."""
        return iter(sorted(self._ends.items()))

    def _find(self, nbytes: int) -> tuple[int, int] | None:
        if self._best:
            at = bisect_left(self._order, (nbytes, -1))
            if at == len(self._order):
                return None
            size, start = self._order[at]
            return start, start + size
        for start, size in self._order:
            if size >= nbytes:
                return start, start + size
        return None

    def _key(self, start: int, end: int) -> tuple[int, int]:
        return (end - start, start) if self._best else (start, end - start)

    def _drop(self, start: int, end: int) -> None:
        del self._ends[start], self._starts[end]
        del self._order[bisect_left(self._order, self._key(start, end))]
