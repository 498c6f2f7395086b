"""Compiles what the GPU benchmark will call, in several processes, so that timing finds it ready.

Inductor and Triton keep their results on disk; each process here compiles some cells and ends.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

Task = tuple[str, int, int]
"""Operator, tokens, hidden."""


def compile_some(tasks: Sequence[Task], device: str, only: Sequence[str]) -> int:
    """Calls every provider of some cells once; what fails fails again, and is said, when timed."""
    import gpu_cells
    import gpu_peers

    import trivet

    # each process here is one of many: Inductor's own pool would be as many for each of them
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    opened, done = trivet.device(device), 0
    peers, _ = gpu_peers.found(opened.info, only)
    for op, tokens, hidden in tasks:
        sizes = {"tokens": tokens, "hidden": hidden}
        try:
            with torch.inference_mode():  # as when it is timed: what is kept depends on it
                cell = gpu_cells.cell(op, sizes, torch.bfloat16, opened, peers)
                gpu_cells.checked(cell, torch.bfloat16)
        except Exception as error:  # noqa: BLE001  # it fails again when timed, and is a row then
            print(f"  compiling {op} {sizes}: {type(error).__name__}", file=sys.stderr)
            continue
        done += 1
    return done


def compile_all(
    tasks: Sequence[Task], device: str, only: Sequence[str], processes: int, seconds: float
) -> float:
    """Spreads the tasks over processes; returns the seconds it took, at most about those given."""
    start = time.monotonic()
    count = min(processes, len(tasks))
    if count < 1:
        return 0.0
    context = multiprocessing.get_context("spawn")
    with context.Pool(count) as pool:
        parts: list[Any] = [
            pool.apply_async(compile_some, (tasks[i::count], device, only)) for i in range(count)
        ]
        for part in parts:
            left = max(0.0, seconds - (time.monotonic() - start))
            try:
                part.get(left)
            except multiprocessing.TimeoutError:
                print("  compiling took its time; the rest is compiled when timed", file=sys.stderr)
                break
        pool.terminate()
    return time.monotonic() - start


def processes() -> int:
    """As many as there are cores, less one for this process; a GPU's memory holds 14 contexts."""
    return max(1, min(14, (os.cpu_count() or 2) - 1))
