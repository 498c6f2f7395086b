"""Kernels of the GPU package beside every peer that is installed, in one run.

Every cell is one operator and shape. All providers work on the same tensors, are checked against
the reference first, and take turns in each round; each is timed under two names, so that the
difference of the two says how much of a difference means nothing. ``cold`` flushes the cache before
each call, ``graph`` replays a captured graph of 20 calls. The ratio of a cell is the time of its
best peer over ours, the better timing of both sides.

The result file is read first and only what it lacks is measured; it is written after every
operator. ``--seconds`` ends a run in time, ``--op`` chooses, ``--merge`` joins files.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import gpu_attention
import gpu_cells
import gpu_compile
import gpu_peers
import gpu_report
import report
import torch
from gpu_clock import Gpu, StandIn, clock

import trivet

RESULTS = Path(__file__).resolve().parent / "results"
MODES = ("cold", "graph")
ATTENTION = ("paged_decode", "paged_prefill", "sampling")
HOST_TOKENS = 8
"""Up to so many tokens the host's part of a call is measured."""

LARGE = 64 << 20
"""Bytes of a cell after which memory is given back, which takes time."""

DTYPE = torch.bfloat16


class Run:
    """One run: the clock, the providers, the document, and when to stop."""

    def __init__(
        self, where: Gpu | StandIn, target: Path, only: Sequence[str], seconds: float
    ) -> None:
        self.clock, self.target, self.until = where, target, time.monotonic() + seconds
        self.device = trivet.device(where.device.type)
        self.peers, missing = gpu_peers.found(self.device.info, only)
        self.document = gpu_report.load(target)
        self.document["missing"] |= missing
        self.copy = where.copy_bandwidth()
        self.document["copy_gb_s"].append(self.copy / 1e9)
        self.done = {gpu_report.identity(one) for one in self.document["rows"]}

    def known(self, op: str, sizes: dict[str, int]) -> bool:
        """Whether the file has this cell, in each mode that could be timed."""
        name = str(DTYPE).removeprefix("torch.")
        return gpu_report.identity({"op": op, "dtype": name, "mode": "cold", **sizes}) in self.done

    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def measure(self, cell: gpu_cells.Cell, quick: bool) -> None:
        """Checks a cell and times it in both modes."""
        gpu_cells.checked(cell, DTYPE)
        for name, reason in cell.missing.items():
            self.document["wrong"].append({"op": cell.op, **cell.sizes, "who": name, "why": reason})
            print(f"  {cell.op} {cell.sizes} {name}: {reason}", file=sys.stderr)
        if gpu_cells.OURS not in cell.calls:
            return
        expected = cell.nbytes / self.copy * 1e6 + cell.flops / 4e8
        hosts = {}
        if cell.sizes.get("tokens", cell.sizes.get("batch", 1)) <= HOST_TOKENS:
            hosts = {
                n: self.clock.host(c, 200 if expected < 100 else 20) for n, c in cell.calls.items()
            }
            self.clock.keep_ahead(max(hosts.values()))
        twice = {f"{name}{again}": call for again in ("", " again")
                 for name, call in cell.calls.items()}  # fmt: skip
        inner, rounds = effort(expected, quick=quick)
        rows = {"cold": self.clock.cold(twice, rounds),
                "graph": self.clock.replayed(twice, rounds, inner)}  # fmt: skip
        for mode, times in rows.items():
            if gpu_cells.OURS in times:
                row = gpu_report.row(cell, mode, times, self.copy, gpu_cells.OURS)
                if hosts and mode == "cold":
                    row["host_us"] = hosts
                self.document["rows"].append(row)
                print(shown(row), flush=True)

    def save(self) -> None:
        """Writes the file."""
        gpu_report.save(self.target, self.document, self.clock.description())


def effort(expected: float, *, quick: bool) -> tuple[int, int]:
    """Calls a graph and rounds for a call of so many microseconds."""
    if quick:
        return 2, 3
    inner = max(2, min(20, int(1200 / max(expected, 1.0))))
    return inner, 25 if expected < 60 else 15 if expected < 300 else 7


def shown(row: dict[str, Any]) -> str:
    """A row as a line."""
    text = f"{gpu_report.name_of(row)}: {row['us']:.2f} us, {row['fraction_of_copy']:.2f} of copy"
    if "tflops" in row:
        text += f", {row['tflops']:.0f} TFLOP/s"
    if "best_peer" in row:
        text += (
            f", {row['ratio_vs_best_peer']:.2f} x {row['best_peer']} ({row['best_peer_us']:.2f})"
        )
    return text


Job = tuple[dict[str, int], Callable[[], Iterable[gpu_cells.Cell]]]
"""The numbers of a cell, and what makes it; one that cannot be made costs no other."""


def jobs(run: Run, op: str, tokens: Sequence[int], hidden: Sequence[int]) -> Iterator[Job]:
    """The cells of an operator that the file lacks."""
    attention = {
        "paged_decode": (gpu_attention.decode_grid(), gpu_attention.decode),
        "paged_prefill": (gpu_attention.prefill_grid(), gpu_attention.prefill),
        "sampling": (gpu_attention.sampling_grid(), gpu_attention.sampling),
    }
    rows = (gpu_cells.grid(op, tokens, hidden), partial(gpu_cells.cells, op, run.peers))
    sizes_of, make = attention.get(op, rows)
    first = "sample_greedy" if op == "sampling" else op
    for sizes in sizes_of:
        if not run.known(first, sizes):
            yield sizes, partial(make, sizes, DTYPE, run.device)


def work(run: Run, op: str, todo: Iterator[Job], quick: bool) -> bool:
    """Measures the cells of an operator; False when the device can go on no longer."""
    for sizes, make in todo:
        try:
            large = False
            for cell in make():
                run.measure(cell, quick)
                large = large or cell.nbytes > LARGE
                del cell  # its memory goes before the next one is made
            if large:
                run.clock.release()
        except Exception as error:  # noqa: BLE001  # a cell that fails is a row of the report
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
            run.document["wrong"].append({"op": op, **sizes, "who": "cell", "why": words})
            print(f"  {op} {sizes}: {words}", file=sys.stderr)
            if not run.clock.alive():
                return False
        if run.late():
            break
    return True


def warm(
    run: Run, ops: Sequence[str], tokens: Sequence[int], hidden: Sequence[int], only: Sequence[str]
) -> None:
    """Compiles in parallel what is timed later."""
    tasks = [(op, s["tokens"], s["hidden"]) for op in ops if op in gpu_cells.OPERATORS
             for s in gpu_cells.grid(op, tokens, hidden) if not run.known(op, s)]  # fmt: skip
    seconds = max(0.0, 0.4 * (run.until - time.monotonic()))
    kind = run.clock.device.type
    took = gpu_compile.compile_all(tasks, kind, only, gpu_compile.processes(), seconds)
    print(f"compiled {len(tasks)} cells in {took:.0f} s", flush=True)


def join(parts: Sequence[Path], target: Path) -> None:
    """Joins files of parts into one."""
    document = gpu_report.merged([gpu_report.load(p) for p in parts])
    gpu_report.save(target, document, document.get("device", {}))


def conclude(target: Path) -> None:
    """Prints the summary and draws it."""
    document = gpu_report.load(target)
    rows = gpu_report.figures(document)
    for row in rows:
        print(f"{row.name}: {row.value:.3f} x ({row.against})")
    print(f"below {gpu_report.BAR} and outside the band of the peer: "
          f"{len(document['summary']['below'])}")  # fmt: skip
    for line in document["summary"]["below"]:
        print(f"  {line}")
    if rows:
        report.picture(target.with_suffix(".png"), "GPU kernels, times as fast as the peers", rows)


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Result file; resumed.")
@click.option("--seconds", default=480.0, help="Ends after the cell in which this is over.")
@click.option("--op", "ops", multiple=True, help="Only these operators.")
@click.option("--peer", "only", multiple=True, help="Only these peers.")
@click.option("--tokens", "tokens", multiple=True, type=int, help="Only these numbers of tokens.")
@click.option("--hidden", "hidden", multiple=True, type=int, help="Only these widths.")
@click.option("--quick", is_flag=True, help="Few rounds, no compiling ahead: whether it runs.")
@click.option("--merge", "parts", multiple=True, type=click.Path(path_type=Path, exists=True),
              help="Join these files into --json, and measure nothing.")  # fmt: skip
def main(
    target: Path | None, seconds: float, ops: tuple[str, ...], only: tuple[str, ...],
    tokens: tuple[int, ...], hidden: tuple[int, ...], quick: bool, parts: tuple[Path, ...],
) -> None:  # fmt: skip
    """Measures the kernels of the GPU package beside every peer that is installed."""
    date = dt.datetime.now(dt.UTC).date().isoformat()
    target = target or RESULTS / f"h200-kernels-{date}.json"
    if parts:
        join(parts, target)
        conclude(target)
        return
    run = Run(clock(), target, only, seconds)
    print(f"copy {run.copy / 1e9:.0f} GB/s, {run.clock.description()['name']}", flush=True)
    for name, reason in run.document["missing"].items():
        print(f"missing {name}: {reason}", flush=True)
    chosen = ops or (*gpu_cells.OPERATORS, *ATTENTION)
    sizes = tokens or gpu_cells.TOKENS, hidden or gpu_cells.HIDDEN
    with torch.inference_mode():
        if not quick:
            warm(run, chosen, *sizes, only)
        for op in chosen:
            alive = work(run, op, jobs(run, op, *sizes), quick)
            run.save()
            if not alive:
                raise click.ClickException(f"the device failed in {op}; see the last line above")
            if run.late():
                print(f"time is over in {op}; the same command goes on from here", flush=True)
                break
    conclude(target)


if __name__ == "__main__":
    main()
