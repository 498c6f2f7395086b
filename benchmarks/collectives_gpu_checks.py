"""Whether collectives between GPUs are right: values, replay, streams, leaks, a rank that ends."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

import trivet
from trivet.errors import CommError

SIZES: Final = (1, 3, 8, 127, 4096, 32769, 131072, 1 << 20, (1 << 21) + 2)
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
OTHERS: Final = (torch.int32, torch.int64, torch.float64, torch.uint8)
WAYS: Final = ("cuda/one_shot", "cuda/two_shot", "cuda/nccl")
TIMEOUT: Final = 2.0
PATIENCE: Final = 30.0
"""Seconds that a call waits in what is no test of waiting: longer than a compiler takes."""

_names = itertools.count()

Rows = list[dict[str, Any]]


def together() -> None:
    """Return when all ranks are here."""
    dist.barrier(device_ids=[torch.cuda.current_device()])


def values(rank: int, n: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Numbers that every rank can make for every other one."""
    if not dtype.is_floating_point:
        return (torch.arange(n, device="cuda") * (rank + 3) + seed).remainder(11).to(dtype)
    made = torch.Generator("cuda").manual_seed(1_000_003 * seed + 1009 * rank + n)
    x = torch.randn(n, device="cuda", generator=made).to(dtype)
    if n > 100:
        x[3], x[5], x[7] = -0.0, float("inf"), float("nan")
    return x


def summed(size: int, n: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """The sum in order of rank, in float32, rounded once."""
    wide = torch.float32 if dtype.itemsize <= 4 and dtype.is_floating_point else dtype
    total = values(0, n, dtype, seed).to(wide)
    for rank in range(1, size):
        total = total + values(rank, n, dtype, seed).to(wide)
    return total.to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN being equal to NaN."""
    if not a.dtype.is_floating_point:
        return bool(torch.equal(a, b))
    return bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))


def alike(group: Any, x: Tensor) -> bool:
    """Whether all ranks have the same bits."""
    bits = x.contiguous().view(torch.uint8).view(-1)
    every = group.all_gather(bits).view(group.size, -1)
    return bool((every == every[0]).all())


@contextmanager
def opened(rank: int, **more: Any) -> Iterator[Any]:
    """A group of all ranks, closed afterwards."""
    device = trivet.device(f"cuda:{rank}")
    group = device.collectives.group(f"checked{next(_names)}", timeout=PATIENCE, **more)
    try:
        yield group
    finally:
        torch.cuda.synchronize()
        group.close()


def sums(rank: int, size: int) -> Rows:
    """Every way of an all-reduce against the sum, at many sizes, out of place and in place."""
    rows = []
    for way in WAYS:
        bad = []
        with opened(rank, prefer={"all_reduce": [way]}) as group:
            for dtype, n in itertools.product(DTYPES, SIZES):
                x = values(rank, n, dtype)
                out = group.all_reduce(x)
                kept = same(x, values(rank, n, dtype))
                group.all_reduce_(x)
                right = way == "cuda/nccl" or same(out, summed(size, n, dtype))
                if not (right and kept and same(out, x) and alike(group, x)):
                    bad.append(f"{dtype} {n}")
            for n in (130, 4097):  # an odd address on one rank alone
                whole = torch.empty(n + 1, dtype=torch.bfloat16, device="cuda")
                y = whole[1:] if rank == 0 else whole[:-1]
                y.copy_(values(rank, n, torch.bfloat16))
                group.all_reduce_(y)
                if not same(y, summed(size, n, torch.bfloat16)):
                    bad.append(f"unaligned {n}")
        rows.append({"check": f"all_reduce {way}", "wrong": bad})
    return rows


def others(rank: int, size: int) -> Rows:
    """The other operations and dtypes, as the group chooses."""
    bad = []
    with opened(rank) as group:
        for dtype in (*DTYPES, *OTHERS):
            x = values(rank, size * 1000, dtype)
            if not same(group.all_reduce(x), summed(size, size * 1000, dtype)):
                bad.append(f"all_reduce {dtype}")
            mine = summed(size, size * 1000, dtype)[rank * 1000 :][:1000]
            if not same(group.reduce_scatter(x), mine):
                bad.append(f"reduce_scatter {dtype}")
        for n in (1, 7, 64, 4099, 200_000, 3_000_000):
            y = torch.arange(n, device="cuda", dtype=torch.uint8) + rank
            every = torch.cat([y - rank + r for r in range(size)])
            if not torch.equal(group.all_gather(y), every):
                bad.append(f"all_gather {n}")
        z = torch.arange(size * 64, device="cuda") + 1000 * rank
        pieces = [torch.arange(64, device="cuda") + 64 * rank + 1000 * r for r in range(size)]
        if not torch.equal(group.all_to_all(z), torch.cat(pieces)):
            bad.append("all_to_all")
        if not torch.equal(group.broadcast(z, size - 1), z - 1000 * rank + 1000 * (size - 1)):
            bad.append("broadcast")
        experts = torch.randint(0, 4 * size, (100, 2), device="cuda")
        tokens = torch.randn(100, 64, device="cuda")
        sent, _, handle = group.dispatch(tokens, experts, 4)
        back = group.combine(sent, handle, torch.full((100, 2), 0.5, device="cuda"))
        if not torch.allclose(back, tokens, atol=1e-5):
            bad.append("experts")
        group.barrier()
        memory = group.symmetric((1 << 20,), torch.bfloat16)
        for n in (1 << 20, 1 << 12):
            memory.tensor.copy_(values(rank, 1 << 20, torch.bfloat16, n))
            torch.cuda.synchronize()
            group.all_reduce_(memory)
            if not same(memory.tensor, summed(size, 1 << 20, torch.bfloat16, n)):
                bad.append(f"symmetric {n}")
        memory.release()
    with opened(rank, prefer={"all_reduce": ["cuda/in_place"]}) as group:
        memory = group.symmetric((1001,), torch.float32)
        for seed in range(20):
            memory.tensor.copy_(values(rank, 1001, torch.float32, seed))
            group.all_reduce_(memory)
            if not same(memory.tensor, summed(size, 1001, torch.float32, seed)):
                bad.append(f"in place {seed}")
        memory.release()
    return [{"check": "other operations", "wrong": bad}]


def fused(rank: int) -> Rows:
    """The sum, the residual and the norm against three operators."""
    bad = []
    norm = trivet.device(f"cuda:{rank}").ops.fused_add_rms_norm
    with opened(rank) as group:
        for dtype, tokens, hidden in itertools.product(DTYPES, (1, 5, 130, 700), (64, 33, 8192)):
            x = values(rank, tokens * hidden, dtype).nan_to_num(0, 1, 1).view(tokens, hidden)
            before = values(99, tokens * hidden, dtype).nan_to_num(0, 1, 1).view(tokens, hidden)
            weight = values(98, hidden, dtype).nan_to_num(0, 1, 1)
            out, total = group.all_reduce_add_rms_norm(x, before, weight)
            normed, added = norm(group.all_reduce(x), before, weight, 1e-6)
            near = 1e-5 if dtype == torch.float32 else 2e-2
            if not (same(total, added) and torch.allclose(out, normed, rtol=near, atol=near)):
                bad.append(f"{dtype} {tokens} {hidden}")
            if not alike(group, out):
                bad.append(f"ranks differ: {dtype} {tokens} {hidden}")
    return [{"check": "fused", "wrong": bad}]


def replays(rank: int, size: int) -> Rows:
    """A graph of several calls, replayed a thousand times with other data each time."""
    bad = []
    with opened(rank) as group:
        xs = [torch.empty(n, dtype=torch.bfloat16, device="cuda") for n in (512, 40000, 3)]
        ys = [torch.empty_like(x) for x in xs]
        step = torch.zeros(1, device="cuda")

        def call() -> None:
            for x, y in zip(xs, ys, strict=True):
                y.copy_(group.all_reduce(x.fill_(0).add_(step).mul_(rank + 1)))

        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for number in range(1000):
            step.fill_(number % 64)
            graph.replay()
            if number % 50 == 0:  # eager calls in between, at other sizes
                group.all_reduce(xs[1][: 1000 + number])
            want = float(number % 64) * size * (size + 1) / 2
            if not all(bool((y == want).all()) for y in ys):
                bad.append(f"replay {number}")
                break
    return [{"check": "1000 replays", "wrong": bad}]


def streams(rank: int, size: int) -> Rows:
    """Calls of one group on two streams by turns, and two groups at the same time."""
    bad = []
    with opened(rank) as one, opened(rank) as two:
        made: Callable[[], Any] = torch.cuda.Stream
        side = [made(), made()]
        xs = [values(rank, 100_000, torch.float32, k) for k in range(200)]
        torch.cuda.synchronize()
        outs = []
        for number, x in enumerate(xs):
            with torch.cuda.stream(side[number % 2]):
                outs.append((one if number % 3 else two).all_reduce(x))
        torch.cuda.synchronize()
        for k, out in enumerate(outs):
            if not same(out, summed(size, 100_000, torch.float32, k)):
                bad.append(f"call {k}")
    return [{"check": "streams", "wrong": bad}]


def leaks(rank: int) -> Rows:
    """Groups and symmetric memory opened and closed again and again."""
    seen: list[int] = []
    for number in range(12):
        with opened(rank, prefer={"all_reduce": ["cuda/one_shot"]}) as group:
            group.all_reduce(torch.ones(64, device="cuda"))
            for _ in range(3):
                memory = group.symmetric((1 << 22,), torch.float32)
                memory.tensor.fill_(1)
                group.all_reduce_(memory)
                memory.release()
                del memory
        torch.cuda.synchronize()
        together()
        if number >= 2:
            seen.append(torch.cuda.mem_get_info()[0])
    return [{"check": "leaks", "wrong": [] if seen[0] - seen[-1] < 8 << 20 else ["memory is lost"],
             "lost_mib": (seen[0] - seen[-1]) / (1 << 20)}]  # fmt: skip


def run(group: Any, rank: int, size: int, until: float) -> Rows:
    """Every check, rank 0's view; each with what was wrong."""
    text = group.explain()
    rows: Rows = [{"check": "explain", "text": text.split("\n")}]
    every: tuple[Callable[[], Rows], ...] = (
        lambda: sums(rank, size), lambda: others(rank, size), lambda: fused(rank),
        lambda: replays(rank, size), lambda: streams(rank, size), lambda: leaks(rank),
    )  # fmt: skip
    for check in every:
        late = torch.tensor([time.monotonic() > until], device="cuda", dtype=torch.int32)
        dist.all_reduce(late)
        if late.item():
            rows.append({"check": "time is over", "wrong": []})
            break
        rows += check()
    return rows


def death(rank: int, size: int, kind: str) -> dict[str, Any]:
    """The last rank ends while the others call; what they raise, and after how many seconds."""
    way = "cuda/nccl" if kind == "nccl" else "cuda/one_shot"
    device = trivet.device(f"cuda:{rank}")
    x = torch.ones(5000, device="cuda")
    with opened(rank, prefer={"all_reduce": [way]}) as warm:  # compiling takes its time
        warm.all_reduce_(x)
    group = device.collectives.group("dying", timeout=TIMEOUT, prefer={"all_reduce": [way]})
    for _ in range(20):
        group.all_reduce_(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if kind == "replayed":
        with torch.cuda.graph(graph):
            group.all_reduce_(x)
    together()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    threading.Timer(30, lambda: os._exit(9)).start()
    try:
        while time.monotonic() - began < 20:
            if kind == "replayed":
                graph.replay()
                torch.cuda.synchronize()
            group.all_reduce_(x)
            torch.cuda.synchronize()
    except CommError as error:
        found: dict[str, Any] = {"error": type(error).__name__, "ranks": list(error.ranks)}
        found["seconds"] = round(time.monotonic() - began, 2)
        found |= {"says": error.what[:300], "result_is_nan": bool(x.isnan().any())}
        began = time.monotonic()
        group.close()
        return found | {"close_seconds": round(time.monotonic() - began, 2), "wrong": []}
    return {"wrong": ["no error within 20 s"]}
