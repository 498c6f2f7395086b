"""Legal memories: what may differ from one to the next, and what may be absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from trivet.contracts.memory import Stats, Tier, Traits
from trivet_conformance.selftest.memory.moving import Mover, Shared
from trivet_conformance.selftest.memory.pool import PAGE, Bare, Pool


class everything_over_one_mapping(Pool):
    """Allocator, reclaimer, trimmer, information and counts."""


class shared_memory_of_the_host(Shared):
    """An allocator and an exporter."""


class aligns_to_pages(Pool):
    """Aligns more than it promises."""

    alignment = PAGE


class doubles_every_size(Pool):
    """Takes more than was asked for, and counts it."""

    def rounded(self, nbytes: int) -> int:
        return 2 * super().rounded(nbytes) + self.alignment


class zeroes_when_it_comes(Pool):
    """Zeros as promised, made at the allocation."""

    zeroed = True

    def hand_out(self, start: int, nbytes: int, size: int) -> torch.Tensor:
        return super().hand_out(start, nbytes, size).zero_()


class keeps_sizes_apart(Pool):
    """Keeps what was given back for the same size, until it is trimmed or short of room."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, list[int]] = {}

    def place(self, size: int, tag: str) -> int:
        if size and self.kept.get(size) and self.used + size <= self.room:
            return self.kept[size].pop()
        try:
            return super().place(size, tag)
        except torch.OutOfMemoryError:
            self.trim(0)
            return super().place(size, tag)

    def deallocate(self, buffer: torch.Tensor) -> None:
        block = self.blocks[id(buffer)]
        size, block.size, self.used = block.size, 0, self.used - block.size * block.resident
        super().deallocate(buffer)
        self.kept.setdefault(size, []).append(block.start)

    def trim(self, nbytes: int) -> int:
        for size, starts in self.kept.items():
            for start in starts:
                self.put_back(start, size)
        self.kept = {}
        return super().trim(nbytes)


class three_functions(Bare):
    """An allocator and nothing else."""

    def __init__(self) -> None:
        super().__init__(Pool())


class torch_in_three_functions:
    """Torch's own allocator, taken back with the last reference."""

    def traits(self) -> Traits:
        return Traits(torch.device("cpu"), Tier.HOST, host_visible=True)

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8)
        except RuntimeError as error:
            raise torch.OutOfMemoryError(tag) from error

    def deallocate(self, buffer: torch.Tensor) -> None:
        del buffer


class migrator_alone(Mover):
    """A migrator and nothing else."""


class reclaimer_alone:
    """A reclaimer and nothing else: it has no buffers of its own."""

    preserves = frozenset({"address"})

    def suspend(self, buffer: torch.Tensor) -> None:
        del buffer

    def resume(self, buffer: torch.Tensor) -> None:
        del buffer


class counts_alone:
    """Counts, and nothing else; it does not know."""

    def stats(self) -> Stats:
        return Stats()


LEGAL: Final[tuple[Callable[[], Any], ...]] = (
    everything_over_one_mapping, shared_memory_of_the_host, aligns_to_pages, doubles_every_size,
    zeroes_when_it_comes, keeps_sizes_apart, three_functions, torch_in_three_functions,
    migrator_alone, reclaimer_alone, counts_alone,
)  # fmt: skip
"""Variants that no family may refuse."""


ELSEWHERE: Final = (shared_memory_of_the_host,)
"""Those that a quick self-test also makes in another process."""
