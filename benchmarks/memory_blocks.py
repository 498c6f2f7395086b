"""What a block of keys and values costs to take and to give up, in batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from report import Row

from trivet.memory.kv.blocks import KvBlocks

BATCH = 1024
BAR = 0.1
POOL = 8192


def _published(pool: KvBlocks, blocks: list[int]) -> None:
    for block in blocks:
        pool.publish(block, block.to_bytes(8, "little"))


def timed(prepare: Callable[[KvBlocks], None], rounds: int) -> tuple[float, float]:
    """Median microseconds of thread time to allocate a block of a batch, and to free it."""
    taken, given = [], []
    for _ in range(rounds):
        pool = KvBlocks(POOL, 16)
        prepare(pool)
        start = time.thread_time()
        blocks = pool.allocate(BATCH)
        middle = time.thread_time()
        pool.free(blocks)
        taken.append(middle - start)
        given.append(time.thread_time() - middle)
    return tuple(1e6 * statistics.median(t) / BATCH for t in (taken, given))  # type: ignore[return-value]


def _cached(pool: KvBlocks) -> None:
    """All blocks are free and hold contents that can be found: taking one evicts."""
    blocks = pool.allocate(POOL)
    _published(pool, blocks)
    pool.free(blocks)


def rows(*, quick: bool) -> list[Row]:
    """Empty blocks, and blocks that are evicted from the prefix cache."""
    rounds = 20 if quick else 200
    taken, given = timed(lambda _: None, rounds)
    evicted, _ = timed(_cached, max(5, rounds // 10))
    text = f"batch of {BATCH}, thread time"
    return [
        Row("memory.block_acquire_us", taken, "us", f"{text}; bar {BAR:g}"),
        Row("memory.block_acquire_evicting_us", evicted, "us", text),
        Row("memory.block_free_us", given, "us", text),
    ]
