"""Kernels of the CPU package against torch and against a copy, on one thread.

Every cell is one operator, dtype and shape. Its calls take turns in each round, in thread CPU time,
and the median of the rounds counts. ``vs_torch`` is the time of the fastest of torch's forms over
the kernel's; both allocate their results. ``fraction_of_copy`` is the time of ``copy_`` of the same
total bytes over the kernel's: once with both results fresh (page faults count on both sides), once
with both kept (the kernel writes in place or into a given result); the smaller counts.

The C library is told to keep freed memory up to 32 MiB a piece, as it does by itself after a while:
when it gives memory back depends on what was freed before, and whoever allocates next pays. Larger
results are new pages at every call, on both sides. Before each slice of a large cell, memory of the
size of the results is filled and freed, so that caches and heap are in one state.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from cpu_cells import COPY_FROM_TOKENS, DTYPES, Call, Cell, activations, gates, layer_norms
from report import Row, picture, publish
from torch import Tensor
from torch.nn import functional

from trivet_cpu import isa
from trivet_cpu.compiled import attention, norm, rotary

BARS = {"bf16": 4, "fp32": 2}  # geometric mean over torch, of the operators in BARRED
BARRED = ("rms_norm", "fused_add_rms_norm", "rotary_embedding")
COPY_BAR = 0.55
HEAD_DIM, KV_HEADS, PAGE = 128, 8, 16
SLICE_SECONDS = 3e-4  # a timed slice repeats calls that are shorter than this


def plain_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The composite form, as models write it."""
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * f.to(x.dtype)


def fused_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The form that torch fuses."""
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def norms(name: str, tokens: int, hidden: int) -> Iterator[Cell]:
    """rms_norm and fused_add_rms_norm."""
    dtype, shape, big = DTYPES[name], f"{tokens}x{hidden}", tokens >= COPY_FROM_TOKENS
    x, residual = (torch.randn(tokens, hidden).to(dtype) for _ in range(2))
    weight, out = torch.randn(hidden).to(dtype), torch.empty_like(x)
    yield Cell(
        "rms_norm",
        name,
        shape,
        big,
        lambda: norm.rms_norm(x, weight),
        lambda: norm.rms_norm_out(x, weight, out=out),
        {
            "F.rms_norm": lambda: fused_rms_norm(x, weight),
            "composite": lambda: plain_rms_norm(x, weight),
        },
        2 * x.nbytes,
    )

    def after_sum(form: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        total = x + residual
        return form(total, weight), total

    mine, total = x.clone(), residual.clone()
    yield Cell(
        "fused_add_rms_norm",
        name,
        shape,
        big,
        lambda: norm.fused_add_rms_norm(x, residual, weight),
        lambda: norm.fused_add_rms_norm_(mine, total, weight),
        {
            "F.rms_norm": lambda: after_sum(fused_rms_norm),
            "composite": lambda: after_sum(plain_rms_norm),
        },
        4 * x.nbytes,
    )


def halves(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The composite form over the two halves of a head."""
    a, b = t.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(t.dtype)


def rotated(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The composite form with a rotated copy and doubled angles, as models write it."""
    a, b = t.chunk(2, -1)
    return (t * cos + torch.cat((-b, a), -1) * sin).to(t.dtype)


def rotary_cells(name: str, tokens: int, hidden: int) -> Iterator[Cell]:
    """rotary_embedding of hidden/128 query heads and 8 key heads."""
    q = torch.randn(tokens, hidden // HEAD_DIM, HEAD_DIM).to(DTYPES[name])
    k = torch.randn(tokens, KV_HEADS, HEAD_DIM).to(DTYPES[name])
    angle = 6 * torch.rand(tokens, HEAD_DIM // 2)
    cos, sin = angle.cos(), angle.sin()
    c, s = cos[:, None], sin[:, None]
    c2, s2 = torch.cat((c, c), -1), torch.cat((s, s), -1)
    mine_q, mine_k = q.clone(), k.clone()
    yield Cell(
        "rotary_embedding",
        name,
        f"{tokens}x{hidden}",
        tokens >= COPY_FROM_TOKENS,
        lambda: rotary.rotary_embedding(q, k, cos, sin),
        lambda: rotary.rotary_embedding_(mine_q, mine_k, cos, sin),
        {
            "halves": lambda: (halves(q, c, s), halves(k, c, s)),
            "rotated": lambda: (rotated(q, c2, s2), rotated(k, c2, s2)),
        },
        2 * (q.nbytes + k.nbytes) + cos.nbytes + sin.nbytes,
    )


DECODED = [(1, 512), (16, 512), (1, 4096), (16, 4096)]  # sequences, keys of each
DECODE_BARS = 2, 0.35  # over torch, of a copy: of every such cell


def decoding(name: str, seqs: int, keys: int) -> Iterator[Cell]:
    """paged_attention of one query a sequence: 32 heads, 8 key heads, pages in random order.

    torch's forms gather the pages of a sequence, and compute in bfloat16 or in float32.
    """
    pages, dtype = keys // PAGE, DTYPES[name]
    k, v = (
        torch.empty(seqs * pages, PAGE, KV_HEADS, HEAD_DIM, dtype=dtype).normal_() for _ in range(2)
    )
    table = torch.randperm(seqs * pages).view(seqs, pages).int()
    q = torch.randn(seqs, 32, HEAD_DIM).to(dtype)
    start, lens = torch.arange(seqs + 1).int(), torch.full((seqs,), keys).int()

    def gathered(wide: torch.dtype) -> tuple[Tensor, Tensor]:
        chosen = table.long()
        found = (c[chosen].flatten(1, 2).transpose(1, 2).to(wide) for c in (k, v))
        return next(found), next(found)

    def product(wide: torch.dtype) -> Tensor:
        keys_of, values_of = gathered(wide)
        return functional.scaled_dot_product_attention(
            q[:, :, None].to(wide), keys_of, values_of, enable_gqa=True
        )

    def composite(wide: torch.dtype) -> Tensor:
        keys_of, values_of = gathered(wide)
        grouped = q.to(wide).view(seqs, KV_HEADS, -1, HEAD_DIM)
        scores = (grouped @ keys_of.mT) * HEAD_DIM**-0.5
        mixed: Tensor = scores.float().softmax(-1).to(wide) @ values_of
        return mixed

    forms: dict[str, Call] = {}
    for label, wide in DTYPES.items():
        forms[f"SDPA {label}"] = partial(product, wide)
        forms[f"composite {label}"] = partial(composite, wide)
    yield Cell(
        "paged_attention",
        name,
        f"{seqs}x{keys}",
        True,
        lambda: attention.paged_attention(q, k, v, table, start, lens, 1, keys, HEAD_DIM**-0.5, []),
        None,
        forms,
        k.nbytes + v.nbytes,
    )


def cells(quick: bool) -> Iterator[Cell]:
    """Every cell; those of one shape share their tensors and are dropped before the next."""
    tokens, hidden = ((1, 16, 512), (2048, 4096)) if quick else ((1, 16, 512, 4096),
                                                                 (2048, 4096, 7168))  # fmt: skip
    for name in DTYPES:
        for make in (norms, layer_norms, rotary_cells, gates, activations):
            for n in tokens:
                for h in hidden:
                    yield from make(name, n, h)
        for seqs, keys in DECODED[:2] if quick else DECODED:
            yield from decoding(name, seqs, keys)


def medians(calls: dict[str, Call], rounds: int, results: list[int] | None) -> dict[str, float]:
    """Median seconds of thread CPU time of each call, over interleaved rounds.

    Args:
        calls: what is timed, by name.
        rounds: how often each has its turn.
        results: bytes of each result of a large cell; None for small cells, whose calls are
            repeated within a slice.
    """
    loops, seen = dict.fromkeys(calls, 1), {name: list[float]() for name in calls}
    for name, call in calls.items():
        call()
        start = time.thread_time()
        call()
        if results is None:
            lasted = max(time.thread_time() - start, 1e-6)
            loops[name] = max(1, int(SLICE_SECONDS / lasted))
    for _ in range(rounds):
        for name, call in calls.items():
            filled = [torch.ones(n, dtype=torch.uint8) for n in results or ()]
            del filled
            start = time.thread_time()
            for _ in range(loops[name]):
                call()
            seen[name].append((time.thread_time() - start) / loops[name])
    return {name: statistics.median(times) for name, times in seen.items()}


def steady_heap() -> None:
    """Tells glibc's allocator when to ask the system for pages; others are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # of malloc.h
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 2**31 - 1)


def result_sizes(call: Call) -> list[int]:
    """Bytes of each tensor that a call returns."""
    found: Any = call()
    return [t.nbytes for t in (found if isinstance(found, (list, tuple)) else [found])]


def measure(cell: Cell, rounds: int) -> dict[str, float]:
    """The figures of one cell by name."""
    results = result_sizes(cell.ours)
    # A copy reads as much as it writes: half of the bytes, in as many pieces as there are results.
    share = cell.nbytes / 2 / sum(results)
    sources = [torch.ones(int(n * share) // 4) for n in results]
    targets = [torch.ones_like(t) for t in sources]
    calls: dict[str, Call] = {
        "ours": cell.ours,
        "kept copy": lambda: [t.copy_(s) for t, s in zip(targets, sources, strict=True)],
        **cell.torch,
    }
    if cell.kept:
        calls["kept"] = cell.kept
        calls["fresh copy"] = lambda: [torch.empty_like(t).copy_(t) for t in sources]
    times = medians(calls, rounds, results if cell.big else None)
    figures = {
        "us": times["ours"] * 1e6,
        "vs_torch": min(times[form] for form in cell.torch) / times["ours"],
    }
    if cell.kept is None:  # attention reads far more than it writes: no result of that size
        return {**figures, "fraction_of_copy": times["kept copy"] / times["ours"]}
    kept, fresh = times["kept copy"] / times["kept"], times["fresh copy"] / times["ours"]
    return {**figures, "fraction_of_copy": min(kept, fresh), "kept": kept, "fresh": fresh}


def rows_of(cell: Cell, found: dict[str, float]) -> list[Row]:
    """The figures of one cell as rows."""
    head = f"cpu_kernels.{cell.operator}.{cell.dtype}.{cell.shape}"
    forms = " or ".join(cell.torch)
    rows = [
        Row(f"{head}.us", found["us"], "us", "CPU time, result allocated"),
        Row(f"{head}.vs_torch", found["vs_torch"], "x", f"the faster of {forms}"),
        Row(f"{head}.fraction_of_copy", found["fraction_of_copy"], "", "copy_ of as many bytes"),
    ]
    if "kept" in found:
        rows += [
            Row(f"{head}.fraction_of_copy_kept", found["kept"], "", "results given"),
            Row(f"{head}.fraction_of_copy_fresh", found["fresh"], "", "results allocated"),
        ]
    return rows


def summary(operator: str, dtype: str, found: list[tuple[Cell, dict[str, float]]]) -> list[Row]:
    """Geometric mean, worst cell, and the smallest fraction of a copy of one operator."""
    ratios = [f["vs_torch"] for _, f in found]
    fractions = [f["fraction_of_copy"] for c, f in found if c.big]
    barred = operator in BARRED
    bars = (f"; bar {BARS[dtype]}", "; bar 1", f"; bar {COPY_BAR}") if barred else ("", "", "")
    if operator == "paged_attention":
        bars = ("", f"; bar {DECODE_BARS[0]}", f"; bar {DECODE_BARS[1]}")
    head = f"cpu_kernels.{operator}.{dtype}"
    return [
        Row(f"{head}.geomean_vs_torch", statistics.geometric_mean(ratios), "x",
            f"the faster of torch's forms, {len(ratios)} shapes{bars[0]}"),
        Row(f"{head}.worst_vs_torch", min(ratios), "x", f"the same{bars[1]}"),
        Row(f"{head}.fraction_of_copy", min(fractions), "",
            f"copy_ of as many bytes, worst of {len(fractions)} large shapes{bars[2]}"),
    ]  # fmt: skip


@click.command()
@click.option(
    "--json",
    "target",
    type=click.Path(path_type=Path),
    help="Write figures, and a PNG beside them.",
)
@click.option("--quick", is_flag=True, help="Fewer shapes and rounds.")
@click.option("--op", "only", multiple=True, help="Only these operators.")
@click.option("--isa", "level", type=click.Choice(isa.levels()), help="Another level.")
def main(target: Path | None, quick: bool, only: tuple[str, ...], level: str | None) -> None:
    """Measures the kernels of the CPU package on one thread."""
    torch.set_num_threads(1)
    steady_heap()
    found: dict[tuple[str, str], list[tuple[Cell, Any]]] = {}
    details: list[Row] = []
    with torch.inference_mode(), isa.using(level or isa.level()):
        for cell in cells(quick):
            if only and cell.operator not in only:
                continue
            figures = measure(cell, 5 if quick else 11)
            found.setdefault((cell.operator, cell.dtype), []).append((cell, figures))
            details += rows_of(cell, figures)
            shown = "  ".join(f"{k} {v:.2f}" for k, v in figures.items())
            print(f"{cell.operator} {cell.dtype} {cell.shape}: {shown}", file=sys.stderr)
    summaries = [row for (op, dt), seen in found.items() for row in summary(op, dt, seen)]
    publish("cpu_kernels", [*summaries, *details], target)
    speedups = [row for row in summaries if row.unit == "x"]
    if target:
        title = "CPU kernels, times as fast as torch (one thread)"
        picture(target.with_suffix(".png"), title, speedups)


if __name__ == "__main__":
    main()
