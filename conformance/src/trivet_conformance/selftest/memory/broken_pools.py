"""Wrong allocators and reclaimers: each is the right pool with one thing changed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import torch

from trivet.contracts.memory import MemoryInfo, Stats, Traits
from trivet_conformance.selftest.memory.pool import PAGE, Bare, Block, Pool


class partial_state_when_full(Pool):
    """Counts what it then refuses."""

    def place(self, size: int, tag: str) -> int:
        self.used += size
        start = super().place(size, tag)
        self.used -= size
        return start


class none_when_full(Pool):
    """Returns nothing where it must raise."""

    def allocate(self, nbytes: int, *, tag: str) -> Any:
        try:
            return super().allocate(nbytes, tag=tag)
        except torch.OutOfMemoryError:
            return None


class steals_when_full(Pool):
    """Takes the place of a live buffer where nothing is free."""

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        try:
            return super().allocate(nbytes, tag=tag)
        except torch.OutOfMemoryError:
            for block in self.blocks.values():
                if block.size >= self.rounded(nbytes):
                    return self.hand_out(block.start, nbytes, 0)
            raise


class same_place_twice(Pool):
    """Every twentieth hole stays a hole when it is given out."""

    turn = 0

    def place(self, size: int, tag: str) -> int:
        start = super().place(size, tag)
        self.turn += 1
        if self.turn % 20 == 0 and size:
            self.put_back(start, size)
        return start


class stale_where_zeroed(Pool):
    """Promises zeros, and gives what the last owner left."""

    zeroed = True


class empty_buffers_stay(Pool):
    """Buffers without bytes are never taken back."""

    def rounded(self, nbytes: int) -> int:
        return max(super().rounded(nbytes), self.alignment)

    def deallocate(self, buffer: torch.Tensor) -> None:
        if buffer.numel():
            super().deallocate(buffer)


class peak_is_what_is_used(Pool):
    """The peak falls with what is used."""

    def stats(self) -> Stats:
        return replace(super().stats(), max_allocated_bytes=self.used)


class peak_is_a_sum(Pool):
    """The peak is the sum of everything that ever came."""

    def hand_out(self, start: int, nbytes: int, size: int) -> torch.Tensor:
        peak = self.peak
        tensor = super().hand_out(start, nbytes, size)
        self.peak = peak + size
        return tensor


class freed_again_by_the_collector(Pool):
    """A buffer that was taken back is taken back once more when its tensor ends."""

    def deallocate(self, buffer: torch.Tensor) -> None:
        block = self.blocks[id(buffer)]
        super().deallocate(buffer)
        weakref.finalize(buffer, self.put_back, block.start, block.size).atexit = False
        block.tensor = self._bytes


class every_seventh_stays(Bare):
    """Every seventh buffer that is given back is forgotten."""

    turn = 0

    def __init__(self) -> None:
        super().__init__(Pool())

    def deallocate(self, buffer: torch.Tensor) -> None:
        self.turn += 1
        if self.turn % 7:
            super().deallocate(buffer)


class small_ones_go_back_to_the_large(Bare):
    """Two arenas; what the small one gave out is put into the other one's holes."""

    def __init__(self) -> None:
        super().__init__(Pool())
        self.small = Pool()

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        arena = self.small if nbytes < PAGE else self.pool
        return arena.allocate(nbytes, tag=tag)

    def deallocate(self, buffer: torch.Tensor) -> None:
        block = self.small.blocks.pop(id(buffer), None) or self.pool.blocks.pop(id(buffer))
        self.pool.put_back(block.start, block.size)


class addresses_of_sixteen_bytes(Pool):
    """Promises 256 bytes and aligns to 16."""

    alignment = 16


class one_thread_owns_it(Bare):
    """Only the thread that allocated finds a buffer again."""

    def __init__(self) -> None:
        super().__init__(Pool())
        self.local = threading.local()

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        tensor = super().allocate(nbytes, tag=tag)
        self.local.__dict__.setdefault("own", {})[id(tensor)] = tensor
        return tensor

    def deallocate(self, buffer: torch.Tensor) -> None:
        super().deallocate(self.local.own.pop(id(buffer)))


class another_error_when_full(Pool):
    """Raises what nobody takes for exhaustion."""

    def place(self, size: int, tag: str) -> int:
        try:
            return super().place(size, tag)
        except torch.OutOfMemoryError as error:
            msg = "allocation failed"
            raise RuntimeError(msg) from error


class a_size_of_its_own(Pool):
    """The tensor is as long as the place."""

    def hand_out(self, start: int, nbytes: int, size: int) -> torch.Tensor:
        return super().hand_out(start, max(size, nbytes), size)


class traits_that_change(Pool):
    """Says something else once a buffer is held."""

    def traits(self) -> Traits:
        return replace(super().traits(), zeroed=False, stable_address=not self.blocks)


class dies_at_the_exit(Pool):
    """Ends the process badly where buffers are left."""

    def __init__(self) -> None:
        super().__init__()
        self.end = weakref.finalize(self, _end_badly, self.blocks)
        self.end.atexit = False

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        made = super().allocate(nbytes, tag=tag)
        self.end.atexit = nbytes == 70_000 and len(self.blocks) == 3
        return made


def _end_badly(left: Mapping[int, Block]) -> None:
    if left:
        os._exit(3)


class suspends_its_neighbours(Pool):
    """Gives whole pages back, those that others share among them."""

    def suspend(self, buffer: torch.Tensor) -> None:
        super().suspend(buffer)
        block = self.blocks[id(buffer)]
        begin = block.start // PAGE * PAGE
        self.drop(begin, -(-(block.start + block.size - begin) // PAGE) * PAGE)


class trims_what_is_live(Pool):
    """Gives everything back that was not used lately, buffers among it."""

    def trim(self, nbytes: int) -> int:
        for block in self.blocks.values():
            self.drop(block.start, block.size)
        return super().trim(nbytes)


class suspends_nothing(Pool):
    """Counts memory as given back and keeps it."""

    def drop(self, start: int, size: int) -> None:
        pass


class place_of_what_sleeps_is_given(Pool):
    """A suspended buffer's addresses are a hole until it is resumed."""

    def suspend(self, buffer: torch.Tensor) -> None:
        super().suspend(buffer)
        block = self.blocks[id(buffer)]
        self.put_back(block.start, block.size)

    def deallocate(self, buffer: torch.Tensor) -> None:
        block = self.blocks[id(buffer)]
        if not block.resident:
            block.size = 0
        super().deallocate(buffer)


class suspended_counts_twice(Pool):
    """A suspended buffer that is given back is subtracted once more."""

    def deallocate(self, buffer: torch.Tensor) -> None:
        self.blocks[id(buffer)].resident = True
        super().deallocate(buffer)


class lost_when_not_resumed(Pool):
    """Forgets a buffer whose resume failed."""

    def resume(self, buffer: torch.Tensor) -> None:
        try:
            super().resume(buffer)
        except torch.OutOfMemoryError:
            self.blocks.pop(id(buffer))
            raise


class zero_for_unknown(Pool):
    """Says 0 where it does not know."""

    def info(self) -> MemoryInfo:
        return replace(super().info(), limit_bytes=0)


class more_free_than_there_is(Pool):
    """Counts what it gave out as free, too."""

    def info(self) -> MemoryInfo:
        return replace(super().info(), free_bytes=self.room + 1)


class nothing_of_the_contract:
    """No ability at all."""


BROKEN: Final[Mapping[str, tuple[Callable[[], Any], ...]]] = MappingProxyType(
    {
        "memory.allocate": (
            partial_state_when_full, none_when_full, steals_when_full, same_place_twice,
            stale_where_zeroed, empty_buffers_stay, peak_is_what_is_used, peak_is_a_sum,
            freed_again_by_the_collector, every_seventh_stays, small_ones_go_back_to_the_large,
            addresses_of_sixteen_bytes, one_thread_owns_it, another_error_when_full,
            a_size_of_its_own, traits_that_change, dies_at_the_exit, nothing_of_the_contract,
        ),
        "memory.reclaim": (
            suspends_its_neighbours, trims_what_is_live, suspends_nothing,
            place_of_what_sleeps_is_given, suspended_counts_twice, lost_when_not_resumed,
        ),
        "memory.info": (zero_for_unknown, more_free_than_there_is),
    }
)  # fmt: skip
"""Family -> the variants that it must kill."""
