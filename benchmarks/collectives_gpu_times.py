"""Times of collectives between GPUs, beside NCCL and torch's operations on symmetric memory."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
import torch.distributed as dist
from collectives_gpu_checks import PATIENCE, alike, same, summed, together, values

import trivet
from trivet_cuda.collectives import plan
from trivet_cuda.collectives.peer_memory import PeerMemoryRanks

KIB: Final = 1 << 10
SMALL: Final = (1 * KIB, 8 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB)
LARGE: Final = (8 << 20, 16 << 20, 32 << 20, 64 << 20, 256 << 20)
TOKENS: Final = (1, 8, 32, 128, 512)
HIDDEN: Final = 8192
DTYPE: Final = torch.bfloat16

Call = Callable[[], object]
Rows = list[dict[str, Any]]


class Bench:
    """What one rank measures; all ranks make the same calls.

    Args:
        rank: of this process.
        size: of the world.
        until: when nothing new is begun.
    """

    def __init__(self, rank: int, size: int, until: float) -> None:
        self.rank, self.size, self.until = rank, size, until
        device = trivet.device(f"cuda:{rank}")
        self.norm = device.ops.fused_add_rms_norm_
        self.group = device.collectives.group("measured", timeout=PATIENCE)
        symmetric = import_module("torch.distributed._symmetric_memory")
        world: Any = dist.group.WORLD
        self.world = str(world.group_name)
        symmetric.enable_symm_mem_for_group(self.world)
        self.memory = symmetric.empty(8 << 20, dtype=DTYPE, device=torch.device("cuda", rank))
        symmetric.rendezvous(self.memory, self.world)
        self.memory.zero_()

    def late(self) -> bool:
        """Whether the time is over, on any rank."""
        over = torch.tensor([time.monotonic() > self.until], device="cuda", dtype=torch.int32)
        dist.all_reduce(over)
        return bool(over.item())

    def ours(self) -> PeerMemoryRanks | None:
        """Our kernels of the measured group, past the group; None where they were given up."""
        found = (one for _, one in self.group._m.sessions if isinstance(one, PeerMemoryRanks))  # noqa: SLF001
        return next(found, None)

    def torchs(self, n: int) -> dict[str, Call]:
        """NCCL, and torch's operations on symmetric memory, where the tensor lies or is copied."""
        ops, x = torch.ops.symm_mem, self.memory[:n]
        local = torch.zeros(n, dtype=DTYPE, device="cuda")

        def copied() -> None:
            x.copy_(local)
            ops.two_shot_all_reduce_(x, "sum", self.world)
            local.copy_(x)

        return {
            "nccl": partial(dist.all_reduce, local),
            "torch_one_shot": partial(ops.one_shot_all_reduce, x, "sum", self.world),
            "torch_two_shot": partial(ops.two_shot_all_reduce_, x, "sum", self.world),
            "torch_two_shot_copied": copied,
        }

    def staged(self, n: int) -> dict[str, Call]:
        """Ours on an ordinary tensor."""
        x = torch.zeros(n, dtype=DTYPE, device="cuda")
        calls: dict[str, Call] = {"ours_group": partial(self.group.all_reduce_, x)}
        ranks = self.ours()
        if ranks is not None:
            calls["ours_one_shot"] = partial(ranks.all_reduce, x, x, "sum")
            calls["ours_one_shot_new"] = partial(ranks.all_reduce, torch.empty_like(x), x, "sum")
            calls["ours_two_shot"] = partial(ranks.two_shot, x, x, "sum")
        return calls

    def placed(self, memory: Any) -> dict[str, Call]:
        """Ours on symmetric memory."""
        memory.tensor.zero_()
        calls: dict[str, Call] = {"ours_group_symmetric": partial(self.group.all_reduce_, memory)}
        ranks, z = self.ours(), memory.tensor
        if ranks is not None:
            calls["ours_in_place"] = partial(ranks.in_place, z, z, "sum")
        return calls

    def small(self) -> Rows:
        """All-reduce of small messages, in a graph."""
        rows = []
        for nbytes in SMALL:
            if self.late():
                break
            n = nbytes // DTYPE.itemsize
            self.correct(n)
            memory = self.group.symmetric((n,), DTYPE) if self.ours() else None
            calls = {**self.torchs(n), **self.staged(n)}
            calls |= self.placed(memory) if memory is not None else {}
            rows.append(self._row(nbytes, self.replayed(calls, 20 if nbytes < 1 << 20 else 10)))
            if memory is not None:
                memory.release()
        return rows

    def large(self) -> Rows:
        """All-reduce of large messages, in a graph."""
        rows = []
        for nbytes in LARGE:
            if self.late():
                break
            n = nbytes // DTYPE.itemsize
            memory = self.group.symmetric((n,), DTYPE) if self.ours() else None
            x = torch.zeros(n, dtype=DTYPE, device="cuda")
            calls: dict[str, Call] = {"nccl": partial(dist.all_reduce, x)}
            calls["ours_group"] = partial(self.group.all_reduce_, x)
            if nbytes <= 16 << 20:
                calls["torch_two_shot"] = self.torchs(n)["torch_two_shot"]
            if nbytes <= 8 << 20:
                calls |= self.staged(n)
            calls |= self.placed(memory) if memory is not None else {}
            rows.append(self._row(nbytes, self.replayed(calls, 5)))
            if memory is not None:
                memory.release()
        return rows

    def fused(self) -> Rows:
        """The sum, the residual and the norm in one kernel against the best of each in turn."""
        rows: Rows = []
        ratios = []
        for tokens in TOKENS:
            calls = {} if self.late() else self._fused(tokens)
            if not calls:
                break
            found = self.replayed(calls, 10)
            apart = min(us for name, us in found.items() if name.endswith("_then_norm"))
            ratios.append(apart / found["fused"])
            row = {"operation": "all_reduce_add_rms_norm", "tokens": tokens, "hidden": HIDDEN}
            rows.append({**row, "us": found, "speedup_vs_apart": ratios[-1]})
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            rows.append({"operation": "fused, geometric mean", "speedup_vs_apart": mean})
        return rows

    def _fused(self, tokens: int) -> dict[str, Call]:
        ranks, norm = self.ours(), self.norm
        if ranks is None:
            return {}
        weight = torch.ones(HIDDEN, dtype=DTYPE, device="cuda")
        x = torch.zeros(tokens, HIDDEN, dtype=DTYPE, device="cuda")
        residual, out = torch.zeros_like(x), torch.empty_like(x)
        y = self.memory[: x.numel()].view(tokens, HIDDEN)
        flat, lying, ops = x.view(-1), y.view(-1), torch.ops.symm_mem

        def after(reduce: Call, z: torch.Tensor) -> Call:
            def both() -> None:
                reduce()
                norm(z, residual, weight, 1e-6)

            return both

        two_shot = partial(ops.two_shot_all_reduce_, lying, "sum", self.world)
        one_shot = partial(ops.one_shot_all_reduce, lying, "sum", self.world)
        calls: dict[str, Call] = {
            "fused": partial(ranks.all_reduce_add_rms_norm, out, residual, x, weight, 1e-6),
            "fused_first": partial(ranks.all_reduce_rms_norm, out, residual, x, weight, 1e-6),
            "nccl_then_norm": after(partial(dist.all_reduce, x), x),
            "torch_two_shot_then_norm": after(two_shot, y),
            "torch_one_shot_then_norm": after(one_shot, y),
            "norm": partial(norm, x, residual, weight, 1e-6),
        }
        if x.nbytes <= plan.ONE_SHOT[2]:
            ours = partial(ranks.all_reduce, flat, flat, "sum")
            calls["ours_then_norm"] = after(ours, x)
        return calls

    def host(self) -> Rows:
        """Eager calls: microseconds of the calling thread, and of the whole call."""
        rows = []
        for nbytes in (1 * KIB, 64 * KIB):
            n = nbytes // DTYPE.itemsize
            calls = {**self.torchs(n), **self.staged(n)}
            found = {name: self._eager(call) for name, call in calls.items()}
            rows.append({"operation": "eager all_reduce", "bytes": nbytes,
                         "host_us": {k: v[0] for k, v in found.items()},
                         "us": {k: v[1] for k, v in found.items()}})  # fmt: skip
        return rows

    def tune(self) -> Rows:
        """Threads and channels of each way, by size; the best of each is told."""
        ranks, rows = self.ours(), []
        if ranks is None:
            return []
        chosen, made = ranks.shape, dict(ranks.made)
        for nbytes in (1 * KIB, 16 * KIB, *SMALL[2:]):
            n = nbytes // DTYPE.itemsize
            x = torch.zeros(n, dtype=DTYPE, device="cuda")
            for name, call in (("one_shot", ranks.all_reduce), ("two_shot", ranks.two_shot)):
                found: dict[str, float] = {}
                for shape in shapes(n // 2 if name == "one_shot" else n // 2 // self.size):
                    if self.late():
                        break
                    ranks.made.clear()
                    ranks.shape = partial(_fixed, shape)
                    try:
                        us = self.replayed({"": partial(call, x, x, "sum")}, 20, 7)[""]
                    except trivet.TrivetError as error:
                        print(f"  {shape}: {error.what}", file=sys.stderr)
                        continue
                    found[_told(shape)] = us
                if found:
                    best = sorted(found.items(), key=lambda pair: pair[1])[:6]
                    rows.append({"operation": name, "bytes": nbytes, "best": dict(best),
                                 "all": found})  # fmt: skip
        ranks.shape, ranks.made = chosen, made
        return rows

    def correct(self, n: int) -> None:
        """What is about to be timed is right."""
        ranks = self.ours()
        if ranks is None:
            return
        for way in (ranks.all_reduce, ranks.two_shot):
            x = values(self.rank, n, DTYPE)
            way(x, x, "sum")
            if not (same(x, summed(self.size, n, DTYPE)) and alike(self.group, x)):
                msg = f"{way.__name__} of {n} is wrong"
                raise AssertionError(msg)

    def replayed(self, calls: Mapping[str, Call], inner: int, rounds: int = 15) -> dict[str, float]:
        """Median microseconds of a call in a graph of several, of the slowest rank."""
        graphs = {name: self._captured(call, inner) for name, call in calls.items()}
        marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
        for number in range(rounds + 1):
            for name, graph in graphs.items():
                start, end = _event(), _event()
                together()
                graph.replay()  # ranks begin together; what is timed follows it at once
                start.record()
                graph.replay()
                end.record()
                if number:
                    marks[name].append((start, end))
        torch.cuda.synchronize()
        mine = [
            statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3 / inner
            for pairs in marks.values()
        ]
        taken = torch.tensor(mine, dtype=torch.float64, device="cuda")
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return dict(zip(marks, taken.tolist(), strict=True))

    @staticmethod
    def _captured(call: Call, inner: int) -> torch.cuda.CUDAGraph:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(inner):
                call()
        torch.cuda.synchronize()
        return graph

    @staticmethod
    def _eager(call: Call, count: int = 300) -> tuple[float, float]:
        best = [math.inf, math.inf]
        for _ in range(5):
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            together()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                call()
            queued = time.perf_counter() - began
            torch.cuda.synchronize()
            best[0] = min(best[0], queued / count * 1e6)
            best[1] = min(best[1], (time.perf_counter() - began) / count * 1e6)
        return best[0], best[1]

    @staticmethod
    def _row(nbytes: int, found: Mapping[str, float]) -> dict[str, Any]:
        row: dict[str, Any] = {"operation": "all_reduce", "bytes": nbytes, "us": dict(found)}
        peers = [us for name, us in found.items()
                 if not name.startswith("ours") and "copied" not in name]  # fmt: skip
        ours = [us for name, us in found.items() if name.startswith("ours")]
        return row | {"ours_over_best_peer": min(ours) / min(peers),
                      "group_over_best_peer": found["ours_group"] / min(peers)}  # fmt: skip


def shapes(words: int) -> list[plan.Shape]:
    """Threads and channels worth a try for so many words of a rank."""
    found = []
    for block in (128, 256, 512, 1024, 2048, 4096):
        for channels in (16, 32, 64, 128):
            for each in (4, 8):
                warps = block // (32 * each)
                if not 1 <= warps <= 16 or (channels > 16 and block * channels // 2 >= words > 0):
                    continue
                shape = plan.Shape(block, warps, True, channels)
                found += [shape, dataclasses.replace(shape, overlap=False)]
    return found


def _fixed(shape: plan.Shape, *_: object) -> plan.Shape:
    return shape


def _told(shape: plan.Shape) -> str:
    late = "" if shape.overlap else ", no overlap"
    return f"{shape.block} words, {shape.warps} warps, {shape.channels} channels{late}"


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
