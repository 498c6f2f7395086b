"""Copies between the host and farther tiers, and what a night costs.

Medians of wall time over rounds in which every way takes its turn: on a busy machine read ratios
to the host's own copy, which is a row of its own. A benchmark of all of memory takes ``rows``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch
from report import Row, publish

from trivet.contracts.memory import Tier
from trivet.memory.buffers import Buffer, Buffers
from trivet.memory.migrate import Mover
from trivet.memory.sleep import Sleep
from trivet.memory.tiers import BlockFiles, DiskAllocator, HostAllocator, SharedAllocator
from trivet.memory.torch_allocator import TorchAllocator

MIB = 1 << 20
BLOCK = 2 * MIB  # 16 tokens of a model of 8 billion parameters, in bfloat16
FACTS = {"layers": "benchmark"}

Calls = dict[str, Callable[[], object]]


def medians(calls: Calls, rounds: int) -> dict[str, float]:
    """Median seconds of each call; the first round is not counted."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                seen[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seen.items()}


def copy(mover: Mover, source: Buffer, target: Buffer) -> None:
    """Copies all of a buffer and waits for it."""
    transfer = mover.copy(source.raw, target.raw, (source.traits.tier, target.traits.tier))
    transfer.wait()
    transfer.release()


def copies(nbytes: int, rounds: int, folder: Path) -> list[Row]:
    """GB/s between the host and each tier, of buffers that were touched before."""
    disk, shared, mover = DiskAllocator(folder), SharedAllocator(), Mover()
    host = Buffers(HostAllocator())
    source = host.allocate(nbytes)
    calls: Calls = {}
    held = [source]
    for heap in (host, Buffers(shared), Buffers(disk)):
        far = heap.allocate(nbytes)
        far.raw.fill_(2)
        held.append(far)
        calls[f"host_to_{heap.traits.tier}"] = partial(copy, mover, source, far)
        if heap.traits.tier is not Tier.HOST:
            calls[f"{heap.traits.tier}_to_host"] = partial(copy, mover, far, source)
    source.raw.fill_(1)
    found = medians(calls, rounds)
    for buffer in held:
        buffer.free()
    disk.close()
    shared.end()
    against = "mapped pages, nothing synchronised"
    return [
        Row(f"memory.tiers.{name}_gb_s", nbytes / seconds / 1e9, "GB/s", against)
        for name, seconds in found.items()
    ]


def block_files(count: int, rounds: int, folder: Path) -> list[Row]:
    """GB/s of blocks that are written, synchronised and renamed, and read with their checksum."""
    files = BlockFiles(folder)
    block = torch.randint(0, 256, (BLOCK,), dtype=torch.uint8)
    back = torch.empty_like(block)

    def write() -> None:
        for i in range(count):
            files.write(str(i), block, FACTS)

    def read() -> None:
        for i in range(count):
            files.read(str(i), back, FACTS)

    found = medians({"write": write, "read": read}, rounds)
    files.close()
    against = f"blocks of {BLOCK // MIB} MiB, checked; in the system's cache when read"
    return [
        Row(f"memory.tiers.block_file_{name}_gb_s", count * BLOCK / s / 1e9, "GB/s", against)
        for name, s in found.items()
    ]


def nights(nbytes: int, rounds: int) -> list[Row]:
    """Seconds for each GiB that sleeps and wakes, kept and discarded, of torch's memory."""
    found = []
    for how in ("keep", "discard"):
        sleep, heap = Sleep(torch.device("cpu")), Buffers(TorchAllocator(torch.device("cpu")))
        sleep.watch(heap)
        held = [heap.allocate(nbytes // 4, tag="kv_cache") for _ in range(4)]
        for buffer in held:
            buffer.raw.fill_(1)
        calls: Calls = {"sleep": partial(sleep.sleep, **{how: ["kv_cache"]}), "wake": sleep.wake}
        found += [
            Row(f"memory.sleep.{how}_{name}_s_per_gib", s * (1 << 30) / nbytes, "s", "host")
            for name, s in medians(calls, rounds).items()
        ]
        for buffer in held:
            buffer.free()
    return found


def rows(*, quick: bool, folder: Path | None = None) -> list[Row]:
    """Every row of this file; files lie in ``folder``, or in the system's temporary one."""
    size, rounds = (32 * MIB, 3) if quick else (256 * MIB, 9)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        where = Path(made)
        return [
            *copies(size, rounds, where),
            *block_files(size // BLOCK, rounds, where),
            *nights(size, rounds),
        ]


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the figures.")
@click.option("--quick", is_flag=True, help="Smaller buffers, fewer rounds.")
@click.option("--folder", type=click.Path(path_type=Path), help="The disk to measure.")
def main(*, target: Path | None, quick: bool, folder: Path | None) -> None:
    """Measures copies between tiers, and sleep and wake."""
    torch.set_num_threads(1)
    publish("memory_tiers", rows(quick=quick, folder=folder), target)


if __name__ == "__main__":
    main()
