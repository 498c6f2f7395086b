"""Free lists by size class: the fastest pool, for sizes that come again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault
from trivet.memory.adaptors.adaptor import foreign
from trivet.memory.pools.pool import Pool
from trivet.memory.sizes import whole


class _Block:
    """A piece of the upstream; ``view`` is the part of it that was handed out last."""

    __slots__ = ("asked", "piece", "size", "view")

    def __init__(self, piece: torch.Tensor, size: int) -> None:
        self.piece, self.size = piece, size
        self.view, self.asked = piece, size


class Binned(Pool):
    """Rounds each size up to a class and keeps freed blocks of it, the last freed first.

    Blocks are never split or joined: ``BestFit`` does that. A size above the largest class goes
    to the upstream as it is, and back there when it is freed.

    Args:
        upstream: where blocks come from, one call each.
        classes: sizes in rising order; by default every power of two from 256 bytes on.
        tag: what the upstream is told that the blocks are for.
    """

    def __init__(
        self, upstream: Allocator, *, classes: Sequence[int] = (), tag: str = "pool"
    ) -> None:
        super().__init__(upstream, tag=tag)
        self._classes = tuple(whole(size, "a size class of {} bytes") for size in classes)
        rising = sorted({size for size in self._classes if size > 0})
        if list(self._classes) != rising:
            raise MemoryFault(
                f"size classes {list(classes)}", fix="sizes above 0, each above the last"
            )
        self._free: dict[int, list[_Block]] = {}
        self._live: dict[int, _Block] = {}

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        del tag  # the upstream knows the pool's
        if type(nbytes) is not int or nbytes < 0:
            nbytes = whole(nbytes, "a buffer of {} bytes")
        size = 1 << (nbytes - 1).bit_length() if nbytes > 256 and not self._classes else 0
        if not size:
            size = self._class_of(nbytes)
        free = self._free.get(size)
        block = free.pop() if free else _Block(self._reserve(size), size)
        if block.asked != nbytes:
            block.view, block.asked = block.piece[:nbytes], nbytes
        view = block.view
        self._live[id(view)] = block
        self._used = used = self._used + size
        if used > self._peak_used:  # noqa: PLR1730  # max() costs a call
            self._peak_used = used
        return view

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        block = self._live.pop(id(buffer), None)
        if block is None:
            raise foreign(self, buffer)
        size = block.size
        if self._classes and size > self._classes[-1]:
            try:
                self._return(block.piece, size)
            except BaseException:
                self._live[id(buffer)] = block
                raise
        else:
            free = self._free.get(size)
            if free is None:
                self._free[size] = [block]
            else:
                free.append(block)
        self._used -= size

    def trim(self, nbytes: int) -> int:
        """Gives kept blocks back, the largest first; how many bytes. 0 asks for all of them."""
        given = 0
        for size in sorted(self._free, reverse=True):
            free = self._free[size]
            while free and (not nbytes or given < nbytes):
                self._return(free[-1].piece, size)
                free.pop()
                given += size
        return given

    def _class_of(self, nbytes: int) -> int:
        if not self._classes:
            return 256
        at = bisect_left(self._classes, nbytes)
        return nbytes if at == len(self._classes) else self._classes[at]
