"""What a pair of allocate and deallocate costs, and a million operations that leave nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from overhead import interleaved
from report import Row

from trivet.contracts.memory import Allocator
from trivet.memory.adaptors import Instrumented, ThreadSafe
from trivet.memory.buffers import Buffers
from trivet.memory.ledger import Ledger
from trivet.memory.pools import Arena, BestFit, Binned, Fixed, Pool
from trivet.memory.torch_allocator import TorchAllocator

NBYTES = 1 << 16
BAR = 2.0


def host() -> Allocator:
    """Ordinary host memory, from torch."""
    return TorchAllocator(torch.device("cpu"))


STACKS: dict[str, Callable[[], Allocator]] = {
    "instrumented": lambda: Instrumented(Binned(host()), limit_bytes=1 << 40),
    "instrumented_ledger": lambda: Instrumented(Binned(host()), ledger=Ledger()),
    "thread_safe": lambda: ThreadSafe(Binned(host())),
    "binned": lambda: Binned(host()),
    "best_fit": lambda: BestFit(host()),
    "fixed": lambda: Fixed(host(), NBYTES),
    "arena": lambda: Arena(host(), NBYTES),
    "torch": host,
}


def _pair(allocator: Allocator) -> Callable[[], None]:
    allocate, deallocate = allocator.allocate, allocator.deallocate

    def pair() -> None:
        deallocate(allocate(NBYTES, tag="bench"))

    return pair


def pairs(rounds: int, loops: int = 2000) -> list[Row]:
    """Medians of thread CPU time, in turns; the first row is the one with a bar."""
    heap = Buffers(STACKS["instrumented"]())
    calls = {name: _pair(make()) for name, make in STACKS.items()}
    calls["buffer"] = lambda: heap.allocate(NBYTES, tag="bench").free()
    took = interleaved(calls, rounds, loops)
    against = f"Instrumented with a limit over Binned, one thread; bar {BAR:g}"
    return [
        Row("memory.adaptor_pair_us", took["instrumented"] / 1000, "us", against),
        *(Row(f"memory.pair.{name}_us", ns / 1000, "us", "64 KiB") for name, ns in took.items()),
    ]


def left_by(pool: Pool, operations: int) -> int:
    """Bytes that the counters still show after so many operations, all freed and trimmed."""
    watched, dice = Instrumented(pool), random.Random(1)
    live: list[torch.Tensor] = []
    sizes = [dice.randrange(1, 1 << dice.randrange(4, 18)) for _ in range(1024)]
    done = 0
    while done < operations:
        if len(live) > 64 or (live and dice.random() < 0.4):
            at = dice.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            watched.deallocate(live.pop())
        else:
            live.append(watched.allocate(sizes[done & 1023], tag="soak"))
        done += 1
    for buffer in live:
        watched.deallocate(buffer)
    pool.trim(0)
    stats = pool.stats()
    return watched.used_bytes + (stats.allocated_bytes or 0) + (stats.reserved_bytes or 0)


def rows(*, quick: bool = False) -> list[Row]:
    """All figures of this file."""
    operations = 100_000 if quick else 1_000_000
    pools = {"binned": Binned(host()), "best_fit": BestFit(host()), "fixed": Fixed(host(), 1 << 17)}
    against = f"after {operations:,} operations and trim; bar 0"
    soaks = [
        Row(f"memory.soak_bytes_left.{name}", left_by(pool, operations), "bytes", against)
        for name, pool in pools.items()
    ]
    return [*pairs(5 if quick else 30), *soaks]
