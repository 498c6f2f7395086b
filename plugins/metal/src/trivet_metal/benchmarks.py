"""Times the operators beside what torch has for the same thing on the same device.

Each number is the median over several runs of many calls between two synchronisations. The same
code runs on the emulator, whose times mean nothing: there it is only tried.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

RUNS: Final = 7


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model's layer.

    Args:
        tokens: rows of activations.
        hidden: their width.
        inter: width of the gate.
        heads: of queries.
        kv_heads: of keys and values.
        dim: width of a head.
        vocab: rows of the embedding.
    """

    tokens: int = 1
    hidden: int = 4096
    inter: int = 14_336
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    vocab: int = 32_000


SIZES: Final = (Sizes(tokens=1), Sizes(tokens=16), Sizes(tokens=512))
TINY: Final = (Sizes(tokens=2, hidden=32, inter=16, heads=2, kv_heads=1, dim=8, vocab=7),)

Pair = tuple[str, Callable[[], Any], Callable[[], Any]]


def measured(
    device: torch.device, sizes: tuple[Sizes, ...], dtypes: tuple[torch.dtype, ...], calls: int
) -> list[dict[str, Any]]:
    """A row for each operator, size and dtype: microseconds of ours and of torch's."""
    rows = []
    for size in sizes:
        for dtype in dtypes:
            for name, ours, torchs in pairs(device, size, dtype):
                mine, other = (_microseconds(f, device, calls) for f in (ours, torchs))
                row: dict[str, Any] = {"operator": name, "dtype": str(dtype), **asdict(size)}
                rows.append(row | {"ours_us": mine, "torch_us": other, "ratio": mine / other})
    return rows


def pairs(device: torch.device, size: Sizes, dtype: torch.dtype) -> Iterator[Pair]:
    """Operators with calls of ours and of torch's, on equal inputs."""

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape).to(device, dtype)

    yield from _over_rows(size, rand)
    yield from _over_heads(size, rand)
    table, ids = rand(size.vocab, size.hidden), torch.zeros(size.tokens, dtype=torch.int64)
    ids = ids.to(device)
    yield (
        "embedding",
        lambda: _ours("embedding").embedding(ids, table),
        lambda: functional.embedding(ids, table),
    )
    x, square = rand(size.tokens, size.hidden), rand(size.hidden, size.hidden)
    yield (
        "linear",
        lambda: _ours("linear").linear(x, square),
        lambda: functional.linear(x, square),
    )


def _ours(module: str) -> Any:
    return import_module(f"trivet_metal.operators.{module}")


def _over_rows(size: Sizes, rand: Callable[..., Tensor]) -> Iterator[Pair]:
    x, residual = rand(size.tokens, size.hidden), rand(size.tokens, size.hidden)
    weight, width = rand(size.hidden), (size.hidden,)
    norm = _ours("norm")
    yield (
        "rms_norm",
        lambda: norm.rms_norm(x, weight),
        lambda: functional.rms_norm(x, width, weight, 1e-6),
    )
    yield (
        "fused_add_rms_norm",
        lambda: norm.fused_add_rms_norm(x, residual, weight),
        lambda: functional.rms_norm(x + residual, width, weight, 1e-6),
    )
    yield (
        "layer_norm",
        lambda: _ours("layer_norm").layer_norm(x, weight, weight),
        lambda: functional.layer_norm(x, width, weight, weight),
    )
    gated = rand(size.tokens, 2 * size.inter)
    yield (
        "silu_and_mul",
        lambda: _ours("activation").silu_and_mul(gated),
        lambda: functional.silu(gated[:, : size.inter]) * gated[:, size.inter :],
    )


def _over_heads(size: Sizes, rand: Callable[..., Tensor]) -> Iterator[Pair]:
    q, k = rand(size.tokens, size.heads, size.dim), rand(size.tokens, size.kv_heads, size.dim)
    angle = rand(size.tokens, size.dim // 2).float()
    cos, sin = angle.cos(), angle.sin()
    yield (
        "rotary_embedding",
        lambda: _ours("rotary").rotary_embedding(q, k, cos, sin),
        lambda: [_rotated(t, cos, sin) for t in (q, k)],
    )
    caches = [rand(size.tokens + 1, 16, size.kv_heads, size.dim) for _ in range(2)]
    slots = torch.arange(size.tokens).to(q.device)
    yield (
        "kv_cache_write",
        lambda: _ours("kv_cache").kv_cache_write(k, k, *caches, slots),
        lambda: [c.view(-1, *c.shape[2:]).index_copy_(0, slots, k) for c in caches],
    )


def _rotated(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = t.float().chunk(2, -1)
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(t.dtype)


def _microseconds(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    """Median over runs of the time that a call takes, waiting once a run."""
    wait: Callable[[], Any] = torch.mps.synchronize if device.type == "mps" else _nothing
    call()
    wait()
    found = []
    for _ in range(RUNS if calls > 1 else 1):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        found.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(found)


def _nothing() -> None:
    """The emulator is done when it returns."""
