"""Paged attention on the device: right, replayable, invariant; then times beside torch's kernels.

``python benchmarks/paged_attention.py [--quick]``. Fractions are of the bandwidth of a copy;
torch's kernels get contiguous keys and values, which is easier.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

from trivet.catalogue.attention import paged_attention as operator
from trivet_triton.kernels.attention import (
    paged_attention,
    paged_attention_invariant,
)

KV_HEADS, HEAD_DIM, PAGE = 8, 128, 16
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def batch(sequences: list[tuple[int, int]], group: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Arguments of a call for sequences of (keys, queries), pages in random order."""
    lens, queries = zip(*sequences, strict=True)
    widest = -(-max(lens) // PAGE)
    blocks = len(lens) * widest
    k, v = (
        torch.randn(blocks, PAGE, KV_HEADS, HEAD_DIM, device="cuda", dtype=dtype) for _ in range(2)
    )
    table = torch.randperm(blocks, device="cuda").view(len(lens), widest).int()
    start = torch.tensor([0, *queries], device="cuda").cumsum(0).int()
    q = torch.randn(sum(queries), KV_HEADS * group, HEAD_DIM, device="cuda", dtype=dtype)
    seq_lens = torch.tensor(lens, device="cuda").int()
    return q, k, v, table, start, seq_lens, max(queries), max(lens), HEAD_DIM**-0.5, []


def microseconds(run: Callable[[], Any], *, graph: bool = True) -> float:
    """Median time of a call, replayed from a graph."""
    run()
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        run = captured.replay
    return 1e3 * float(do_bench(run, warmup=20, rep=60, return_mode="median"))


def check() -> None:
    """Errors against the reference's, replay with other lengths, bits in other batches."""
    mixed = [(700, 700), (0, 0), (5000, 1), (3000, 50), (1, 1), (2049, 3), (9000, 1)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for sequences in (mixed, [(n, min(n, 1)) for n, _ in mixed]):
            given = batch(sequences, 4, dtype)
            wide = [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
                    for t in given]  # fmt: skip
            sets: tuple[dict[str, Any], ...] = ({}, {"window": 1000, "soft_cap": 30.0})
            for scalars in sets:
                exact, plain = (operator.reference(*g, **scalars) for g in (wide, given))
                allowed = (plain.double() - exact).square().mean().sqrt()
                runs = [paged_attention, paged_attention_invariant]
                for run in runs:
                    error = (run(*given, **scalars).double() - exact).square().mean().sqrt()
                    word = "ok" if error <= 3 * allowed else "WRONG"
                    print(f"{word} {run.__name__} {dtype} {scalars} {error / allowed:.2f}")
    given = list(batch(mixed, 4))
    whole = paged_attention_invariant(*given)
    for s, (length, queries) in enumerate(mixed):
        first, last = int(given[4][s]), int(given[4][s + 1])
        for count in {1, queries // 2 or 1, queries} if queries else ():
            start = torch.tensor([0, count], device="cuda").int()
            part: tuple[Any, ...] = given[0][last - count : last], *given[1:3], given[3][s : s + 1]
            part = *part, start, given[5][s : s + 1], count, length, *given[8:]
            alone = paged_attention_invariant(*part)
            same = torch.equal(alone, whole[last - count : last])
            print("ok" if same else "WRONG", "bits of sequence", s, "last", count, "from", first)
    captured = torch.cuda.CUDAGraph()
    given = list(batch([(4000, 1)] * 5, 4))
    given[7] = 1 << 17
    paged_attention(*given)
    with torch.cuda.graph(captured):
        out = paged_attention(*given)
    given[5].copy_(torch.tensor([1, 4000, 17, 900, 2000]))
    captured.replay()
    print("ok" if torch.equal(out, paged_attention(*given)) else "WRONG", "replay")


def torchs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> list[float]:
    """Times of torch's kernels; infinite where one refuses."""
    found = []
    for backend in BACKENDS:
        try:
            with sdpa_kernel([backend]):
                found.append(microseconds(lambda: functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=True
                )))  # fmt: skip
        except RuntimeError as error:
            print(backend.name, str(error)[:80])
            found.append(float("inf"))
    return found


def decode(copy: float, *, quick: bool) -> None:
    """Cells of batch and context."""
    for group in (4,) if quick else (4, 8):
        for count, keys in (
            (1, 1024), (1, 8192), (1, 32768), (8, 1024), (8, 8192), (8, 32768),
            (64, 1024), (64, 8192), (256, 1024), (256, 8192),
        ):  # fmt: skip
            given = batch([(keys, 1)] * count, group)
            size = 4 * count * keys * KV_HEADS * HEAD_DIM
            runs = paged_attention, paged_attention_invariant
            ours = [microseconds(partial(f, *given)) for f in runs]
            table = functional.pad(given[3], (0, (1 << 17) // PAGE - given[3].shape[1]))
            above = (*given[:3], table, *given[4:7], 1 << 17, *given[8:])
            ours.append(microseconds(partial(paged_attention, *above)))
            q = given[0][:, :, None]
            k, v = (t.view(count, keys, KV_HEADS, HEAD_DIM).transpose(1, 2).contiguous()
                    for t in given[1:3])  # fmt: skip
            times = [*ours, *torchs(q, k, v, causal=False)]
            names = ("decode", "invariant", "decode, bound 128k", "flash", "cudnn")
            pairs = zip(names, times, strict=True)
            cells = (f"{n} {t:.1f} us {size / t / copy:.2f}" for n, t in pairs)
            print(f"decode g{group} B{count} x {keys}:", ", ".join(cells), flush=True)


def prefill() -> None:
    """Causal, 32 heads on 8, and a mix with decode."""
    for count, keys in ((4, 2048), (1, 8192), (16, 512)):
        given = batch([(keys, keys)] * count, 4)
        flops = 2 * count * 32 * keys * keys * HEAD_DIM
        q, k, v = (t.view(count, keys, -1, HEAD_DIM).transpose(1, 2) for t in given[:3])
        runs = paged_attention, paged_attention_invariant
        times = [microseconds(partial(f, *given)) for f in runs]
        times += torchs(q, k.contiguous(), v.contiguous(), causal=True)
        names = ("triton", "invariant", "flash", "cudnn")
        cells = (f"{n} {t:.0f} us {flops / t / 1e6:.0f}" for n, t in zip(names, times, strict=True))
        print(f"prefill {count} x {keys}, TFLOP/s:", ", ".join(cells), flush=True)
    for sequences in ([(8192, 512), *[(4096, 1)] * 64], [(32768, 64)]):
        given = batch(sequences, 4)
        runs = paged_attention, paged_attention_invariant
        times = [microseconds(partial(f, *given)) for f in runs]
        print(f"mix of {len(sequences)}: triton {times[0]:.0f} us, invariant {times[1]:.0f} us")


def main() -> None:
    """Checks, then times."""
    check()
    big = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(big)
    copy = 2 * big.numel() / microseconds(lambda: other.copy_(big), graph=False)
    print(f"copy {copy / 1e3:.0f} GB/s")
    decode(copy, quick="--quick" in sys.argv)
    prefill()


if __name__ == "__main__":
    main()
