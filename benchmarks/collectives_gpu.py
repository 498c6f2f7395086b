"""Collectives of GPUs on one machine: first whether they are right, then how long they take.

Each rank is a process with a GPU of its own. What is timed stands beside NCCL and torch's own
operations on symmetric memory in the same run, by turns: microseconds of one call inside a captured
graph, the slowest rank's, medians over replays. ``host`` is what a call costs the calling thread.

The result file is written after every part, so that a run that is ended keeps what it has:

    python benchmarks/collectives_gpu.py --json benchmarks/results/h200-collectives-DATE.json

``--part`` chooses: checks, deaths, small, large, fused, host, tune. All but ``tune`` take about
three minutes on two GPUs, most of it compiling; ``tune`` measures threads and channels.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import collectives_gpu_checks as checks
import collectives_gpu_times as times
import report
import torch
import torch.distributed as dist
from gpu_clock import Gpu

PARTS: Final = ("checks", "small", "large", "fused", "host", "tune", "deaths")
GRACE: Final = 40.0
"""Seconds that ranks have once one of them has ended badly."""

WORLD_SECONDS: Final = 120.0
DEATHS: Final = ("peer_memory", "nccl", "replayed")


def joined(rank: int, size: int, folder: str) -> None:
    """Make this process a rank with a GPU."""
    torch.cuda.set_device(rank)
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    method = f"file://{folder}/store"
    dist.init_process_group("nccl", init_method=method, rank=rank, world_size=size,
                            timeout=timedelta(seconds=WORLD_SECONDS))  # fmt: skip


def rank_main(
    rank: int, size: int, folder: str, parts: Sequence[str], seconds: float, target: str
) -> None:
    """One rank: does each part; rank 0 writes the document after each."""
    joined(rank, size, folder)
    until = time.monotonic() + seconds
    document = load(target)
    document |= {"benchmark": "collectives_gpu", "machine": report.machine(), "ranks": size,
                 "versions": report.versions(), "device": Gpu(1 << 20).description()}  # fmt: skip
    bench = times.Bench(rank, size, until)
    work = {
        "checks": lambda: checks.run(bench.group, rank, size, until),
        "small": bench.small, "large": bench.large, "fused": bench.fused, "host": bench.host,
        "tune": bench.tune,
    }  # fmt: skip
    for part in parts:
        if part not in work:
            continue
        began = time.monotonic()
        try:
            rows = work[part]()
        except Exception as error:
            rows = [{"failed": f"{type(error).__name__}: {error}"[:2000]}]
            print(f"rank {rank}: {part}: {rows[0]['failed']}", file=sys.stderr, flush=True)
            if rank == 0:
                save(document, part, rows, began, target)
            raise  # the ranks are no longer at the same place
        if rank == 0:
            save(document, part, rows, began, target)
            show(part, rows)
    bench.group.close()
    dist.destroy_process_group()


def load(target: str) -> dict[str, Any]:
    """What was found before."""
    path = Path(target)
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"parts": {}}
    return found


def save(
    document: dict[str, Any], part: str, rows: list[dict[str, Any]], began: float, target: str
) -> None:
    """Write what there is so far."""
    document["parts"][part] = {"seconds": round(time.monotonic() - began, 1), "rows": rows}
    Path(target).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def show(part: str, rows: Sequence[dict[str, Any]]) -> None:
    """One line for each row."""
    print(f"== {part}", flush=True)
    for row in rows:
        print("  " + "  ".join(f"{k}={_short(v)}" for k, v in row.items()), flush=True)


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "{" + " ".join(f"{k}:{_short(v)}" for k, v in value.items()) + "}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def started(target: Any, size: int, seconds: float, *arguments: Any) -> list[int | None]:
    """Run ranks to their end, or for so many seconds; their exit codes."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        ranks = [
            context.Process(target=target, args=(rank, size, folder, *arguments))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        until = time.monotonic() + seconds
        while any(process.is_alive() for process in ranks) and time.monotonic() < until:
            ranks[0].join(0.2)
            if any(process.exitcode for process in ranks):  # the others may wait for it
                until = min(until, time.monotonic() + GRACE)
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
            process.join()
    return codes


def death_main(rank: int, size: int, folder: str, kind: str, told: str) -> None:
    """One rank of a group of which the last one ends; the others say what they saw."""
    joined(rank, size, folder)
    row = checks.death(rank, size, kind)
    Path(told, f"{kind}.{rank}").write_text(json.dumps(row), encoding="utf-8")
    os._exit(0)  # whatever of the dead group is left must not keep this process


def deaths(size: int) -> list[dict[str, Any]]:
    """What the others see of a rank that ends, for each kind of call."""
    rows = []
    with tempfile.TemporaryDirectory() as told:
        for kind in DEATHS:
            codes = started(death_main, size, 60.0, kind, told)
            path = Path(told, f"{kind}.0")
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            rows.append({"kind": kind, "codes": codes, **(found or {"failed": "it hung"})})
    return rows


@click.command()
@click.option("--json", "target", default="build/collectives-gpu.json", show_default=True)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS))
@click.option("--ranks", default=2, show_default=True)
@click.option("--seconds", default=420.0, show_default=True, help="when nothing new is begun")
def main(target: str, parts: tuple[str, ...], ranks: int, seconds: float) -> None:
    """Checks and times collectives on this machine's GPUs."""
    chosen = parts or tuple(part for part in PARTS if part != "tune")
    if torch.cuda.device_count() < ranks:
        print(f"not_run: {torch.cuda.device_count()} GPUs, {ranks} are needed")
        sys.exit(3)
    path = Path(target).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    until = time.monotonic() + seconds
    left = [part for part in chosen if part != "deaths"]
    while left:  # a part that fails, or hangs, costs nothing but itself
        budget = until - time.monotonic()
        codes = started(rank_main, ranks, budget + 60, left, budget, str(path))
        document = load(str(path))
        done = document["parts"]
        after = [part for part in left if part not in done]
        if after and after[0] == _reached(left, done):
            print(f"{after[0]} did not end: exit codes {codes}", flush=True)
            hung = [{"failed": f"exit codes {codes}"}]
            save(document, after.pop(0), hung, time.monotonic(), str(path))
        left = after if time.monotonic() < until else []
    if "deaths" in chosen:
        began, rows = time.monotonic(), deaths(ranks)
        save(load(str(path)), "deaths", rows, began, str(path))
        show("deaths", rows)
    parts_done = load(str(path))["parts"]
    bad = [part for part, found in parts_done.items() if any(map(_wrong, found["rows"]))]
    print(f"written: {path}" + (f"; wrong or failed: {', '.join(bad)}" if bad else "; all right"))
    sys.exit(1 if bad else 0)


def _reached(parts: Sequence[str], done: dict[str, Any]) -> str:
    """The part that was under way at the end; empty where the last one told that it failed."""
    said = [part for part in parts if part in done]
    if said and any("failed" in row for row in done[said[-1]]["rows"]):
        return ""
    return next((part for part in parts if part not in done), "")


def _wrong(row: dict[str, Any]) -> bool:
    return bool(row.get("failed") or row.get("wrong"))


if __name__ == "__main__":
    main()
