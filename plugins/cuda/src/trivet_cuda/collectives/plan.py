"""Which way of the kernels serves which sizes, and with how many threads.

Where a number was not measured it is an estimate, and says so. ``benchmarks/collectives_gpu.py``
measures them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CHANNELS: Final = 128
"""Programs of a grid at most: each has a multiprocessor of its own on any large GPU."""

MOST_RANKS: Final = 8

KIB: Final = 1 << 10
MIB: Final = 1 << 20


def slot(size: int) -> int:
    """Words that a channel has for those of one other rank; a message's bounds below fit in."""
    return 16384 if size == 2 else 8192 if size <= 4 else 4096


def words_of(size: int) -> int:
    """Words of the memory that each rank has for those of the others, both halves."""
    return 2 * (size - 1) * CHANNELS * slot(size)


def flags_of(size: int) -> int:
    """Words behind that, by which ranks meet."""
    return (size - 1) * CHANNELS


ONE_SHOT: Final = {2: 4 * MIB, 4: 256 * KIB, 8: 64 * KIB}
"""Most bytes of a message by most ranks; an estimate. More ranks send more in one step."""

TWO_SHOT: Final = {4: 2 * MIB, 8: 2 * MIB}
"""The same for two steps; an estimate. For two ranks one step moves as little."""

SCATTER: Final = {2: 4 * MIB, 4: 2 * MIB, 8: 2 * MIB}
"""The same for reduce-scatter, by the bytes that go in; an estimate."""

GATHER: Final = {2: 256 * KIB, 4: 128 * KIB, 8: 32 * KIB}
"""The same for all-gather, whose packets are twice as large; an estimate."""

IN_PLACE: Final = {8: 64 * MIB}
"""The same for symmetric memory that is not staged; an estimate."""

FUSED: Final = {2: 16 * MIB, 4: 512 * KIB, 8: 128 * KIB}
"""The same for the sum, the residual and the norm in one kernel; an estimate."""


def bands(most: Mapping[int, int]) -> tuple[tuple[int, int, int], ...]:
    """``(least ranks, most ranks, most bytes)`` of each row of a table above."""
    least, found = 2, []
    for ranks, nbytes in sorted(most.items()):
        found.append((least, ranks, nbytes))
        least = ranks + 1
    return tuple(found)


@dataclass(frozen=True)
class Shape:
    """Threads of a launch.

    Args:
        block: words that a program takes at once.
        warps: of a program.
        overlap: the kernel is placed while the one before it ends.
        channels: programs at most.
    """

    block: int
    warps: int
    overlap: bool
    channels: int = CHANNELS

    def options(self) -> dict[str, Any]:
        """Of Triton's compiler."""
        return {"num_warps": self.warps, **({"launch_pdl": True} if self.overlap else {})}


def shape(operation: str, words: int, capability: int) -> Shape:
    """Threads for a message of so many words on each rank; the same on every rank.

    A thread takes four words, which is its widest access, until every channel is full.
    """
    overlap = capability >= 90
    most = {"one_shot": 4096, "two_shot": 2048, "gather": 1024, "in_place": 4096}[operation]
    block = 128
    while block < most and block * CHANNELS < words:
        block *= 2
    least = 4 if operation != "gather" else 2
    return Shape(block, max(1, min(16, block // (32 * least))), overlap)


def row_shape(words: int, capability: int) -> Shape:
    """Threads for rows of so many words: a thread takes eight of them, or more of long rows."""
    block = 128
    while block < words:
        block *= 2
    return Shape(block, max(1, min(16, block // 256)), capability >= 90)
