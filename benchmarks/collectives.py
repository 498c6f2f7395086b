"""Collectives of the CPU against gloo, in one run: ranks on this machine, both by turns.

A round is the mean of its calls on the slowest rank, ours and gloo's one after the other; figures
are medians over rounds, of times and of ratios within a round. All ranks begin a round together.
What is timed is what an engine calls: a method of a group here, a function of torch.distributed
there, each with the allocation of its result.
"""

from __future__ import annotations

import json
import math
import multiprocessing as mp
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import torch
import torch.distributed as dist
from report import Row, picture, publish
from torch import Tensor

import trivet

SIZES: Final = {"8B": 8, "8KiB": 8 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "16MiB": 16 << 20}
SMALL: Final = ("8B", "8KiB", "64KiB")
CALLS: Final = {"8B": (200, 40), "8KiB": (200, 40), "64KiB": (100, 30), "1MiB": (12, 6),
                "16MiB": (3, 2)}  # fmt: skip
"""Calls of a round, ours and gloo's."""
Call = Callable[[], object]


def _renamed(new: str, old: str) -> Callable[..., object]:
    """A function that torch 2.13 gave a new name."""
    found: Callable[..., object] = getattr(dist, new, None) or getattr(dist, old)
    return found


def pairs(group: Any, nbytes: int) -> dict[str, tuple[Call, Call]]:
    """Each operation, ours and gloo's; ``nbytes`` are those of the larger tensor of a rank."""
    size, rank = group.size, group.rank
    n = max(nbytes // 4, 1)
    x, share = torch.zeros(n), torch.zeros(max(n // size, 1))
    whole = torch.zeros(share.numel() * size)

    def gather() -> Tensor:
        out = torch.empty_like(whole)
        _renamed("all_gather_single", "all_gather_into_tensor")(out, share)
        return out

    def scatter() -> Tensor:
        out = torch.empty_like(share)
        _renamed("reduce_scatter_single", "reduce_scatter_tensor")(out, whole)
        return out

    def exchange() -> Tensor:
        out = torch.empty_like(whole)
        dist.all_to_all_single(out, whole)
        return out

    def ping(send: Callable[[Tensor, int], object], recv: Callable[[Tensor, int], object]) -> None:
        if rank == 0:
            send(x, 1)
            recv(x, 1)
        elif rank == 1:
            recv(x, 0)
            send(x, 0)

    return {
        "all_reduce": (lambda: group.all_reduce_(x), lambda: dist.all_reduce(x)),
        "reduce_scatter": (lambda: group.reduce_scatter(whole), scatter),
        "all_gather": (lambda: group.all_gather(share), gather),
        "all_to_all": (lambda: group.all_to_all(whole), exchange),
        "broadcast": (lambda: group.broadcast_(x), lambda: dist.broadcast(x, 0)),
        "send_recv": (lambda: ping(group.send, group.recv_), lambda: ping(dist.send, dist.recv)),
    }


def mean(call: Call, count: int) -> float:
    """Seconds a call, over so many; all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def measure(group: Any, rounds: int, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Seconds a call, ours and gloo's ``[2, rounds]``, by ``OP.SIZE``."""
    found: dict[str, Tensor] = {}
    for size in names:
        calls = dict(pairs(group, SIZES[size]))
        memory = group.symmetric((SIZES[size] // 4,), torch.float32) if size not in SMALL else None
        if memory is not None:
            ours = partial(group.all_reduce_, memory)
            calls["all_reduce_symmetric"] = ours, calls["all_reduce"][1]
        for name, two in calls.items():
            taken = torch.zeros(2, rounds, dtype=torch.float64)
            for call in two:
                call()
            for n in range(rounds):
                for which, call in enumerate(two):
                    taken[which, n] = mean(call, CALLS[size][which])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            found[f"{name}.{size}"] = taken
        if memory is not None:
            memory.release()
    return found


def rank_main(rank: int, size: int, folder: str, rounds: int, names: tuple[str, ...]) -> None:
    """One rank: joins gloo, opens a group, measures; rank 0 writes seconds and ratios."""
    torch.set_num_threads(1)
    loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback.pop()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=size)  # fmt: skip
    group = trivet.device("cpu").collectives.group()
    found = measure(group, rounds, names)
    group.close()
    if rank == 0:
        rows = {
            key: (float(t[0].median()), float((t[1] / t[0]).median())) for key, t in found.items()
        }
        Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def run(size: int, rounds: int, names: tuple[str, ...]) -> dict[str, list[float]]:
    """The rows of one world."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        ranks = [
            context.Process(target=rank_main, args=(rank, size, folder, rounds, names))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(600)
            process.kill()
        codes = [process.exitcode for process in ranks]
        if any(codes):
            raise click.ClickException(f"{size} ranks ended with {codes}")
        rows: dict[str, list[float]] = json.loads(Path(folder, "rows.json").read_text("utf-8"))
        return rows


def figures(world: int, rows: dict[str, list[float]]) -> list[Row]:
    """Microseconds and ratios of one world."""
    out: list[Row] = []
    small: dict[str, list[float]] = {}
    against = f"gloo, {world} ranks on {os.cpu_count()} cores"
    for key, (ours, ratio) in rows.items():
        operation, size = key.split(".")
        name = f"collectives.{operation}.{world}.{size}"
        out.append(Row(f"{name}.us", ours * 1e6, "us"))
        out.append(Row(f"{name}.speedup_vs_gloo", ratio, "x", against))
        if size in SMALL:
            small.setdefault(operation, []).append(ratio)
    for operation, ratios in small.items():
        middle = math.exp(statistics.fmean(math.log(r) for r in ratios))
        name = f"collectives.{operation}.{world}.small.speedup_vs_gloo"
        out.append(Row(name, middle, "x", against))
    return out


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(path_type=Path), default=None)
@click.option("--plot", "image", type=click.Path(path_type=Path), default=None)
@click.option("--quick", is_flag=True, help="Fewer rounds, to see that it works.")
@click.option("--world", "worlds", multiple=True, type=int, default=(2, 4), help="Ranks.")
@click.option("--size", "sizes", multiple=True, type=click.Choice(tuple(SIZES)), default=(),
              help="Only these.")  # fmt: skip
def main(
    target: Path | None, image: Path | None, quick: bool, worlds: tuple[int, ...],
    sizes: tuple[str, ...],
) -> None:  # fmt: skip
    """Measures, prints the figures, and writes and draws them where files are named."""
    found = [
        row
        for world in worlds
        for row in figures(world, run(world, 2 if quick else 9, sizes or tuple(SIZES)))
    ]
    publish("collectives", found, target)
    if image:
        picture(image, "collectives: times as fast as gloo", [r for r in found if r.unit == "x"])


if __name__ == "__main__":
    main()
