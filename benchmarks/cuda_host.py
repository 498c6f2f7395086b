"""Host time of one eager call of the CUDA package's Triton operators, plain and at a bind.

    python benchmarks/cuda_host.py [--json FILE] [--rounds N]

Without a GPU launches are replaced by a function that does nothing and allocations are the CPU's:
what is left, less the allocations, is the Python of each call. Such results are called
``emulated, launches stubbed``. With a GPU everything is real and nothing is taken off; vLLM's own
operators stand beside where it is installed. CPU time of one thread, the least of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from itertools import repeat, starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from trivet.catalogue import operators
from trivet.contracts.implementation import claims_of
from trivet.errors import PluginBroken
from trivet.kernels.triton import Variant
from trivet.selection.facts import normalise
from trivet_cuda.peers import vllm as peer_vllm
from trivet_triton.kernels import (
    activation,
    attention,
    kv_cache,
    layer_norm,
    norm,
    rotary,
    rotary_kv_cache,
)
from trivet_triton.kernels import qk_norm as qk

CALLS = 500
TOKENS, HIDDEN, INTER, HEADS, KV_HEADS, DIM, PAGE, KEYS = 4, 4096, 14336, 32, 8, 128, 16, 2048
BF16 = torch.bfloat16
FEW, BAR = (1, 8), 0.8
"""Rows of the norms that are set beside vLLM's, and the time at a bind over vLLM's at most."""

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")

Call = Callable[[], object]


class Cell(NamedTuple):
    """One operator: the function, what a call gets, what an engine promises, what it allocates."""

    target: str
    function: Callable[..., Any]
    given: tuple[Any, ...]
    facts: Mapping[str, Any]
    allocate: Call | None = None
    vllm: Call | None = None


def cells() -> list[Cell]:
    """The operators of a decode step, with the tensors that a model of 8B parameters has."""
    x, residual, weight = draw(TOKENS, HIDDEN), draw(TOKENS, HIDDEN), draw(HIDDEN)
    gate, head_weight = draw(TOKENS, 2 * INTER), draw(DIM)
    packed = draw(TOKENS, HEADS + 2 * KV_HEADS, DIM)
    q, k, v = torch.split(packed, [HEADS, KV_HEADS, KV_HEADS], dim=1)
    cos, sin = (torch.rand(TOKENS, DIM // 2, device=DEVICE) for _ in range(2))
    pages = -(-KEYS // PAGE)
    k_cache, v_cache = (draw(TOKENS * pages, PAGE, KV_HEADS, DIM) for _ in range(2))
    slots = torch.arange(TOKENS, device=DEVICE) * pages * PAGE
    table = torch.arange(TOKENS * pages, dtype=torch.int32, device=DEVICE).view(TOKENS, pages)
    starts = torch.arange(TOKENS + 1, dtype=torch.int32, device=DEVICE)
    lengths = torch.full((TOKENS,), 100, dtype=torch.int32, device=DEVICE)
    normed = {"dtype": BF16, "weight.dtype": BF16, "hidden": HIDDEN}
    heads = {"dtype": BF16, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM}
    apart = {"q.rows": packed.stride(0), "k.rows": packed.stride(0)}
    turned = {**heads, **apart, "rotary_half": DIM // 2}
    caches = {"k_cache.dtype": BF16, "v_cache.dtype": BF16, "block_size": PAGE}
    dense = ["k_cache", "v_cache"]
    in_cache = (k_cache, v_cache, slots)
    attended: tuple[Any, ...] = (q, k_cache, v_cache, table, starts, lengths, 1, 100, DIM**-0.5, [])
    ops = vllm_ops()

    def like(*tensors: torch.Tensor) -> Call:
        return lambda: [torch.empty_like(t) for t in tensors]

    return [
        Cell("rms_norm", norm.rms_norm, (x, weight), {**normed, "contiguous": ["x", "weight"]},
             like(x), ops and (lambda: ops.rms_norm(torch.empty_like(x), x, weight, 1e-6))),
        Cell("fused_add_rms_norm_", norm.fused_add_rms_norm_, (x, residual, weight),
             {**normed, "contiguous": ["x", "residual", "weight"]},
             None, ops and (lambda: ops.fused_add_rms_norm(x, residual, weight, 1e-6))),
        Cell("fused_add_rms_norm", norm.fused_add_rms_norm, (x, residual, weight),
             {**normed, "contiguous": ["x", "residual", "weight"]}, like(x, residual)),
        Cell("layer_norm", layer_norm.layer_norm, (x, weight, weight),
             {**normed, "contiguous": ["x", "weight", "bias"]}, like(x)),
        Cell("silu_and_mul", activation.silu_and_mul, (gate,),
             {"dtype": BF16, "inter": INTER, "contiguous": True},
             lambda: gate.new_empty(TOKENS, INTER),
             ops and (lambda: ops.silu_and_mul(gate.new_empty(TOKENS, INTER), gate))),
        Cell("qk_rms_norm_", qk.qk_rms_norm_, (q, k, head_weight, head_weight),
             {**heads, **apart, "q_weight.dtype": BF16, "k_weight.dtype": BF16}),
        Cell("qk_rms_norm", qk.qk_rms_norm, (q, k, head_weight, head_weight),
             {**heads, **apart, "q_weight.dtype": BF16, "k_weight.dtype": BF16}, like(q, k)),
        Cell("rotary_embedding_", rotary.rotary_embedding_, (q, k, cos, sin),
             {**turned, **aligned("q", "k", "cos", "sin"), "contiguous": ["cos", "sin"]}),
        Cell("rotary_kv_cache_write", rotary_kv_cache.rotary_kv_cache_write,
             (q, k, v, cos, sin, *in_cache),
             {**turned, **caches, **aligned("q", "k", "v", "cos", "sin", *dense),
              "contiguous": ["cos", "sin", *dense, "slots"]}),
        Cell("kv_cache_write", kv_cache.kv_cache_write, (k, v, *in_cache),
             {"dtype": BF16, **caches, **aligned("k", "v", *dense), "kv_heads": KV_HEADS,
              "head_dim": DIM,
              "contiguous": [*dense, "slots"]}),
        Cell("paged_attention", attention.paged_attention, attended,
             {**heads, **caches, **aligned("q", *dense), "q.rows": packed.stride(0),
              "scale": DIM**-0.5,
              "contiguous": [*dense, "block_table", "query_start", "seq_lens"]},
             lambda: q.new_empty(TOKENS, HEADS, DIM)),
    ]  # fmt: skip


def aligned(*names: str) -> dict[str, int]:
    """The promise that tensors start at multiples of 16 bytes."""
    return {f"{name}.offset_aligned": 16 for name in names}


def draw(*sizes: int) -> torch.Tensor:
    """Random numbers on the device."""
    return torch.randn(sizes, device=DEVICE).to(BF16)


@cache
def vllm_ops() -> Any:
    """The operators of vLLM as torch has them; None without a GPU or where they do not load."""
    if not GPU:
        return None
    try:
        return peer_vllm.ops()
    except PluginBroken as error:
        print(error, file=sys.stderr)
        return None


def at_bind(cell: Cell) -> Callable[..., Any] | None:
    """The function of a site with these facts."""
    op = operators()[cell.target.removesuffix("_")]
    facts = normalise(op, cell.facts, site=True).values
    claims = [c for c in claims_of(cell.function) if c.resolve is not None]
    return claims[0].resolve(facts) if claims and claims[0].resolve else None


def measured(
    calls: Mapping[Any, tuple[Callable[..., object], tuple[Any, ...]]], rounds: int
) -> dict[Any, float]:
    """Microseconds of each call; they take turns, so that all see the same machine."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, (call, given) in calls.items():
            call(*given)
            if GPU:
                torch.cuda.synchronize()
            many = repeat(given, CALLS)
            start = time.thread_time_ns()
            deque(starmap(call, many), maxlen=0)  # the loop itself costs next to nothing
            best[key] = min(best[key], (time.thread_time_ns() - start) / CALLS / 1e3)
    return best


def rows(rounds: int) -> list[dict[str, Any]]:
    """One row an operator: microseconds plain and bound, less allocations where emulated."""
    every, calls = cells(), dict[tuple[str, str], Any]()
    for cell in every:
        for way, function in (("plain", cell.function), ("bound", at_bind(cell))):
            if function is not None:
                calls[cell.target, way] = function, cell.given
        for way, call in (("allocation", cell.allocate), ("vllm", cell.vllm)):
            if call is not None:
                calls[cell.target, way] = call, ()
    with torch.inference_mode():
        found = measured(calls, rounds)
    made = []
    for cell in every:
        took = {way: us for (target, way), us in found.items() if target == cell.target}
        off = 0.0 if GPU else took.get("allocation", 0.0)
        row = {w: round(us - (off if w in {"plain", "bound"} else 0), 2) for w, us in took.items()}
        made.append({"operator": cell.target, **row})
    return made


def small_norms(rounds: int) -> list[dict[str, Any]]:
    """rms_norm of a few rows: what of a call is the allocation, and the time over vLLM's.

    Each side allocates its result where a ratio is taken. Nothing is taken off.
    """
    calls, ops, norms = dict[tuple[int, str], Any](), vllm_ops(), norm.rms_norm
    weight = draw(HIDDEN)
    facts = {"dtype": BF16, "weight.dtype": BF16, "hidden": HIDDEN, "contiguous": ["x", "weight"]}
    for tokens in FEW:
        x, y = draw(tokens, HIDDEN), draw(tokens, HIDDEN)
        calls[tokens, "empty_like"] = torch.empty_like, (x,)
        calls[tokens, "plain"] = norms, (x, weight)
        if (bound := at_bind(Cell("rms_norm", norms, (x, weight), facts))) is not None:
            calls[tokens, "bound"] = bound, (x, weight)
        if ops is not None:
            calls[tokens, "vllm"] = _allocating(ops.rms_norm), (x, weight)
            calls[tokens, "vllm into"] = ops.rms_norm, (y, x, weight, 1e-6)
    with torch.inference_mode():
        found = measured(calls, rounds)
    made: list[dict[str, Any]] = []
    for tokens in FEW:
        took = {way: us for (n, way), us in found.items() if n == tokens}
        row = {way: round(us, 2) for way, us in took.items()}
        if "vllm" in took:
            row |= {f"{way}/vllm": round(took[way] / took["vllm"], 3)
                    for way in ("plain", "bound") if way in took}  # fmt: skip
        made.append({"tokens": tokens, "hidden": HIDDEN, **row})
    return made


def _allocating(kernel: Callable[..., object]) -> Callable[..., torch.Tensor]:
    """A norm of vLLM as an engine calls it, into a fresh tensor."""

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel(y, x, weight, 1e-6)
        return y

    return normed


def tell_norms(norms: list[dict[str, Any]]) -> None:
    """Prints the few rows, with the bar."""
    for row in norms:
        told = ", ".join(f"{k} {v}" for k, v in row.items() if k not in ("tokens", "hidden"))
        print(f"rms_norm {row['tokens']} x {row['hidden']}: {told}")
    ratios = [row["bound/vllm"] for row in norms if "bound/vllm" in row]
    kept = "not measured" if not ratios else "kept" if max(ratios) <= BAR else "missed"
    print(f"bound/vllm is to be at most {BAR}: {kept}")


def main() -> int:
    """Prints a table, and writes it as JSON where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if not GPU:
        Variant.on = lambda *_: lambda *_: None  # type: ignore[method-assign]
    found, norms = rows(given.rounds), small_norms(given.rounds)
    how = torch.cuda.get_device_name() if GPU else "emulated, launches stubbed"
    ways = ("plain", "bound", "allocation", "vllm")
    print(f"{how}; microseconds of CPU time of one call")
    print(f"{'operator':24}" + "".join(f"{way:>12}" for way in ways))
    for row in found:
        print(f"{row['operator']:24}" + "".join(f"{row.get(way, '-'):>12}" for way in ways))
    tell_norms(norms)
    if given.json is not None:
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        document = {"execution": how, "unit": "us of thread CPU time a call", **versions}
        given.json.write_text(
            json.dumps(document | {"rows": found, "rms_norm": norms}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
