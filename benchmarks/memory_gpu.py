"""What sleeping and waking of a GPU's memory costs and frees; one command where there is one.

``python benchmarks/memory_gpu.py [--gib 8] [--json FILE]``: buffers of two tags are made, a graph
that reads one of them is captured, then both go to sleep (one is copied to pinned memory first,
the other is discarded) and wake. Every row says what was expected; the exit status is 1 when one is
missed. Free memory is the driver's own count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import trivet
from trivet.contracts.memory import Allocator, Reclaimer

GIB = 1 << 30
PIECE = 256 << 20


@dataclass(frozen=True)
class Row:
    """One figure: what it is, what it may be, and whether it is."""

    name: str
    value: float
    unit: str
    expected: str
    good: bool


def seconds(call: Callable[[], object], times: int = 5) -> float:
    """The median time of a call that is waited for on the device."""
    taken = []
    for _ in range(times):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        call()
        torch.accelerator.synchronize()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[times // 2]


def free() -> int:
    """Free bytes of the current device, as its driver counts."""
    return int(torch.cuda.mem_get_info()[0])


def measure(memory: Any, nbytes: int) -> list[Row]:
    """All rows; everything that was made is given back."""
    rows: list[Row] = []
    count = max(1, nbytes // 2 // PIECE)
    before = free()
    weights, caches = (
        [memory.allocate(PIECE, tag=tag) for _ in range(count)] for tag in ("weights", "kv")
    )
    tagged = 2 * count * PIECE
    for i, buffer in enumerate(weights):
        buffer.view(torch.int32).copy_(torch.arange(PIECE // 4, dtype=torch.int32)).add_(i)
    sums = [int(b.view(torch.int32).sum(dtype=torch.int64)) for b in weights]
    graph, result = captured(weights[0])
    rows += copies(weights)
    kept = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in weights]
    addresses = [b.data_ptr() for b in (*weights, *caches)]

    torch.accelerator.synchronize()
    awake = free()
    start = time.perf_counter()
    for buffer, copy in zip(weights, kept, strict=True):
        copy.copy_(buffer, non_blocking=True)
    torch.accelerator.synchronize()
    offload = time.perf_counter() - start
    for buffer in (*weights, *caches):
        memory.suspend(buffer)
    asleep = time.perf_counter() - start
    freed = (free() - awake) / tagged
    rows.append(Row("memory.sleep_frees", freed, "of tagged bytes", ">= 0.95", freed >= 0.95))
    rows.append(Row("memory.sleep_seconds", asleep, "s", "", good=True))

    start = time.perf_counter()
    for buffer in (*weights, *caches):
        memory.resume(buffer)
    resumed = time.perf_counter() - start
    for buffer, copy in zip(weights, kept, strict=True):
        buffer.copy_(copy, non_blocking=True)
    torch.accelerator.synchronize()
    woken = time.perf_counter() - start
    graph.replay()
    torch.accelerator.synchronize()
    rows.append(Row("memory.wake_seconds", woken, "s", "", good=True))
    rows.append(Row("memory.map_seconds", resumed, "s", "", good=True))
    same = addresses == [b.data_ptr() for b in (*weights, *caches)]
    rows.append(Row("memory.wake_keeps_addresses", same, "", "1", same))
    restored = sums == [int(b.view(torch.int32).sum(dtype=torch.int64)) for b in weights]
    rows.append(Row("memory.wake_restores", restored, "", "1", restored))
    replayed = int(result) == sums[0]
    rows.append(Row("memory.graph_replays_after_wake", replayed, "", "1", replayed))

    limit = next(r.value for r in rows if r.name == "memory.copy_to_pinned")
    speed = count * PIECE / offload / 1e9
    good = speed >= 0.8 * limit
    rows.append(Row("memory.offload", speed, "GB/s", f">= 0.8 of {limit:.1f}", good))
    del graph, result
    for buffer in (*weights, *caches):
        memory.deallocate(buffer)
    torch.accelerator.empty_cache()  # of the copies that were measured
    left = before - free()
    rows.append(Row("memory.left_behind", left, "bytes", "< 64 MiB: torch's", left < 64 << 20))
    return rows


def captured(buffer: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """A graph that sums a buffer, and where its result stands, wiped."""
    numbers = buffer.view(torch.int32)
    torch.sum(
        numbers, dtype=torch.int64
    )  # what is loaded at first use is loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.sum(numbers, dtype=torch.int64)
    result.zero_()
    return graph, result


def copies(buffers: list[torch.Tensor]) -> list[Row]:
    """The limits: one large copy to pinned memory and back, of torch's own tensors."""
    device = torch.empty(PIECE, dtype=torch.uint8, device=buffers[0].device)
    host = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
    down = PIECE / seconds(lambda: host.copy_(device, non_blocking=True)) / 1e9
    up = PIECE / seconds(lambda: device.copy_(host, non_blocking=True)) / 1e9
    return [
        Row("memory.copy_to_pinned", down, "GB/s", "", good=True),
        Row("memory.copy_from_pinned", up, "GB/s", "", good=True),
    ]


def main() -> int:
    """Measures, prints and writes; 1 when a row is not what it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=8, help="bytes of both tags together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    given = parser.parse_args()
    device = trivet.device(given.device)
    torch.accelerator.set_device_index(device.info.index)
    memory = device.memory.provided
    if not (isinstance(memory, Allocator) and isinstance(memory, Reclaimer)):
        sys.exit(f"{device.info.name} brings no memory that can be suspended: nothing to measure")
    measure(memory, 2 * PIECE)  # what a process loads once is no part of what is left behind
    rows = measure(memory, int(given.gib * GIB))
    for row in rows:
        verdict = "" if not row.expected else f"  {'good' if row.good else 'MISSED'} {row.expected}"
        print(f"{row.name:34}{row.value:12.4g} {row.unit}{verdict}")
    if given.json:
        facts = {"device": device.info.to_json(), "torch": torch.__version__, "gib": given.gib}
        document = facts | {"rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
