"""Buffers of this process alone: huge pages where allowed, near who writes them, trimmed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

import torch

from trivet.errors import InvalidBuffer
from trivet_cpu.memory.pages import PAGE, Pages, nodes
from trivet_cpu.memory.room import name_of, refuse_beyond, refuse_odd
from trivet_cpu.memory.shared import SharedMemory

if TYPE_CHECKING:  # loaded when memory is used, not with the device
    from trivet.contracts.memory import Stats, Tier, Traits

_CPU: Final = torch.device("cpu")
KEPT_BYTES: Final = 64 << 20
"""Freed pages that are kept for the next buffer of the same size, in all."""


class PrivateMemory:
    """An allocator of mapped pages, with trimming, suspension and counts.

    Args:
        keep_bytes: freed pages that are kept at most; ``trim`` gives them back.
        huge: take huge pages that an administrator set apart, and fail when there are too few.
    """

    preserves: frozenset[str] = frozenset({"address", "graphs"})

    def __init__(self, keep_bytes: int = KEPT_BYTES, *, huge: bool = False) -> None:
        self._keep, self._huge = keep_bytes, huge
        self._live: dict[int, tuple[Pages, torch.Tensor]] = {}
        self._suspended: set[int] = set()
        self._kept: list[Pages] = []
        self._in_use = self._most_in_use = self._most_held = 0
        self.shared = SharedMemory()

    def tiers(self) -> Mapping[Tier, object]:
        """The allocator of each tier that this package serves."""
        from trivet.contracts.memory import Tier

        return {Tier.HOST: self, Tier.SHARED: self.shared}

    @cached_property
    def _traits(self) -> Traits:
        from trivet.contracts.memory import Tier, Traits

        return Traits(_CPU, Tier.HOST, PAGE, host_visible=True, zeroed=True)

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A zeroed buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        refuse_odd(nbytes)
        if not nbytes:
            empty = torch.empty(0, dtype=torch.uint8)
            self._live[id(empty)] = _NONE, empty
            return empty
        pages = next((p for p in self._kept if p.nbytes == nbytes), None)
        if pages is None:
            refuse_beyond(nbytes, tag)
            pages = Pages(nbytes, huge=self._huge)
            tensor = pages.tensor()
            if nodes() > 1:
                tensor.zero_()  # torch's threads write, so each page lies near one that works on it
        else:
            self._kept.remove(pages)
            tensor = pages.tensor().zero_()
        self._live[id(tensor)] = pages, tensor
        self._in_use += pages.size
        self._count()
        return tensor

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Take a buffer back, suspended or not.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        pages = self._pages(buffer)
        suspended = id(buffer) in self._suspended
        goes = not suspended and pages is not _NONE
        keeps = goes and self._kept_bytes() + pages.size <= self._keep
        if goes and not keeps:
            pages.give_back()  # the mapping ends with the last view of it, the memory now
        del self._live[id(buffer)]
        self._suspended.discard(id(buffer))
        self._in_use -= pages.size if goes else 0
        if keeps:
            self._kept.append(pages)

    def trim(self, nbytes: int) -> int:
        """Gives kept pages back to the system, the longest kept first; 0 asks for all."""
        given = 0
        while self._kept and (not nbytes or given < nbytes):
            pages = self._kept[0]
            pages.give_back()
            del self._kept[0]
            given += pages.size
        return given

    def suspend(self, buffer: torch.Tensor) -> None:
        """Gives its memory back and keeps its address; what it held is lost.

        Raises:
            MemoryFault: the system refuses; it stays as it was.
        """
        pages = self._pages(buffer)
        if id(buffer) in self._suspended:
            return
        if pages is not _NONE:
            pages.give_back()
            self._in_use -= pages.size
        self._suspended.add(id(buffer))

    def resume(self, buffer: torch.Tensor) -> None:
        """Gives it memory again, all zeros.

        Raises:
            OutOfMemory: there is no room; it stays suspended.
        """
        pages = self._pages(buffer)
        if id(buffer) not in self._suspended:
            return
        if pages is not _NONE:
            refuse_beyond(pages.size, "a suspended buffer")
            buffer.zero_()
            self._in_use += pages.size
            self._count()
        self._suspended.discard(id(buffer))

    def stats(self) -> Stats:
        """What this allocator holds; torch's own host memory does not count itself."""
        from trivet.contracts.memory import Stats

        return Stats(
            allocated_bytes=self._in_use,
            reserved_bytes=self._in_use + self._kept_bytes(),
            max_allocated_bytes=self._most_in_use,
            max_reserved_bytes=self._most_held,
        )

    def _kept_bytes(self) -> int:
        return sum(pages.size for pages in self._kept)

    def _count(self) -> None:
        self._most_in_use = max(self._most_in_use, self._in_use)
        self._most_held = max(self._most_held, self._in_use + self._kept_bytes())

    def _pages(self, buffer: torch.Tensor) -> Pages:
        known = self._live.get(id(buffer))
        if known is None:
            msg = f"no live buffer of mapped pages is this {name_of(buffer)}"
            raise InvalidBuffer(msg, fix="give back the very tensor that allocate returned, once")
        return known[0]


_NONE: Final = object.__new__(Pages)  # the pages of a buffer of no bytes
