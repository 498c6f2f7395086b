"""What the GPU benchmark times of attention over pages, and of choosing the next token.

torch's products get keys and values that lie together, which a paged engine does not have; the
others read the same pages as ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from gpu_cells import HEAD_DIM, OURS, PAGE, Cell
from gpu_clock import Call
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import trivet

KV_HEADS = 8
SCALE = HEAD_DIM**-0.5
DECODE = {"batch": (1, 8, 64, 256), "context": (1024, 8192, 32768), "group": (4, 8)}
PREFILL = ((4, 2048), (1, 8192))
SAMPLED = {"sequences": (1, 32, 256), "vocab": (128256,)}
REFERENCE_TOKENS = 1 << 16
"""Keys up to which the reference says what is right; beyond, torch's flash kernel does."""

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def pages_of(batch: int, length: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Caches of keys and values, and the table of the pages of each sequence, in random order."""
    torch.manual_seed(batch * 7 + length)
    each = math.ceil(length / PAGE)
    caches = [torch.empty(batch * each, PAGE, KV_HEADS, HEAD_DIM, dtype=dtype, device=device)
              for _ in range(2)]  # fmt: skip
    for one in caches:
        one.normal_()
    table = torch.randperm(batch * each, device=device).view(batch, each).int()
    return [*caches, table]


def gathered(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """The rows of each sequence, together: ``[batch, kv_heads, length, head_dim]``."""
    batch, each = table.shape
    found = torch.empty(batch, KV_HEADS, each * PAGE, HEAD_DIM, dtype=pages.dtype,
                        device=pages.device)  # fmt: skip
    for i in range(batch):
        found[i] = pages[table[i].long()].flatten(0, 1).transpose(0, 1)
    return found[:, :, :length]


def product(backend: SDPBackend | None, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Torch's product with one of its kernels."""
    grouped = q.shape[1] != k.shape[1]

    def run() -> Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=SCALE, enable_gqa=grouped
        )

    if backend is None:
        return run()
    with sdpa_kernel([backend]):
        return run()


def facts(dtype: str, heads: int) -> dict[str, Any]:
    """What an engine would promise of attention over pages."""
    names = ["q", "k_cache", "v_cache", "block_table", "query_start", "seq_lens"]
    return {
        "dtype": dtype, "k_cache.dtype": dtype, "v_cache.dtype": dtype, "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "block_size": PAGE, "heads": heads, "scale": SCALE, "window": 0,
        "soft_cap": 0.0, "layout": "NHD", "contiguous": names,
    }  # fmt: skip


def paged(
    op: str,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: trivet.Device,
    *,
    batch: int,
    queries: int,
    keys: int,
    heads: int,
) -> tuple[Cell, Callable[[], tuple[Tensor, Tensor]], list[Any]]:
    """The cell with our call, keys and values without pages, and the arguments."""
    where = device.torch
    caches = pages_of(batch, keys, dtype, where)
    q = torch.randn(batch * queries, heads, HEAD_DIM, dtype=dtype, device=where)
    start = torch.arange(batch + 1, device=where).int() * queries
    lens = torch.full((batch,), keys, device=where).int()
    plain = (q, *caches, start, lens, queries, keys, SCALE)
    name = str(dtype).removeprefix("torch.")
    promised = facts(name, heads) | {"max_query_len": queries}
    ours = device.bind("paged_attention", promised)
    first = next(r for r in device.explain("paged_attention", promised) if r.verdict != "no")

    @cache
    def together() -> tuple[Tensor, Tensor]:
        return gathered(caches[0], caches[2], keys), gathered(caches[1], caches[2], keys)

    def wanted() -> list[Tensor]:
        if batch * keys <= REFERENCE_TOKENS:
            return [device.operators["paged_attention"].reference(*plain, [])]
        k, v = together()
        if queries == 1:
            found = product(None, q.view(batch, KV_HEADS, -1, HEAD_DIM), k, v, causal=False)
        else:
            shaped = q.view(batch, queries, heads, HEAD_DIM).transpose(1, 2)
            found = product(None, shaped, k, v, causal=True).transpose(1, 2)
        return [found.reshape(q.shape)]

    cell = Cell(
        op, dict(sizes), name, sum(c.nbytes for c in caches[:2]) + 2 * q.nbytes,
        {OURS: partial(ours, *plain, [])}, lambda: None,
        lambda _, result: [result.reshape(q.shape)],  # type: ignore[attr-defined]
        wanted, first.provider,
    )  # fmt: skip
    return cell, together, list(plain)


def add_paged_peers(cell: Cell, plain: list[Any]) -> None:
    """FlashAttention 3 of vLLM and FlashInfer, where they are installed."""
    q, k_cache, v_cache, table, _, lens, queries, keys, _ = plain
    if find_spec("vllm"):
        own = import_module("trivet_cuda.peers.vllm_attention")
        cell.calls["vllm_fa3"] = lambda: own.paged(*plain)
    else:
        cell.missing["vllm_fa3"] = "package 'vllm' is not installed"
    if queries > 1:
        return
    if not find_spec("flashinfer"):
        cell.missing["flashinfer"] = "package 'flashinfer' is not installed"
        return
    try:
        cell.calls["flashinfer"] = _planned(q, k_cache, v_cache, table, lens, keys)
    except Exception as error:  # noqa: BLE001  # whatever a peer raises is its line in the report
        cell.missing["flashinfer"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _planned(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lens: Tensor, keys: int) -> Call:
    """FlashInfer's decoding with the plan that an engine makes once a step."""
    batch, each = table.shape
    ends = torch.arange(batch + 1, device=q.device).int() * each
    last = torch.full_like(lens, (keys - 1) % PAGE + 1)
    space = torch.zeros(128 << 20, dtype=torch.uint8, device=q.device)
    wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        space, "NHD", use_cuda_graph=True, use_tensor_cores=True, paged_kv_indptr_buffer=ends,
        paged_kv_indices_buffer=table.flatten(), paged_kv_last_page_len_buffer=last,
    )  # fmt: skip
    wrapper.plan(
        ends, table.flatten(), last, q.shape[1], KV_HEADS, HEAD_DIM, PAGE, sm_scale=SCALE,
        q_data_type=q.dtype, kv_data_type=k.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(q, (k, v))


def decode(sizes: Mapping[str, int], dtype: torch.dtype, device: trivet.Device) -> Iterator[Cell]:
    """One query a sequence."""
    batch, keys, heads = sizes["batch"], sizes["context"], sizes["group"] * KV_HEADS
    cell, together, plain = paged(
        "paged_decode", sizes, dtype, device, batch=batch, queries=1, keys=keys, heads=heads
    )
    add_paged_peers(cell, plain)
    k, v = together()
    alone = plain[0].view(batch, heads, 1, HEAD_DIM)
    rows = plain[0].view(batch, KV_HEADS, sizes["group"], HEAD_DIM)
    for name, backend in backends(device.torch).items():
        cell.calls[f"torch_{name}"] = partial(product, backend, alone, k, v, causal=False)
        cell.calls[f"torch_{name}_rows"] = partial(product, backend, rows, k, v, causal=False)
    yield cell


def prefill(sizes: Mapping[str, int], dtype: torch.dtype, device: trivet.Device) -> Iterator[Cell]:
    """Whole prompts, causal."""
    batch, length, heads = sizes["sequences"], sizes["length"], 4 * KV_HEADS
    cell, together, plain = paged(
        "paged_prefill", sizes, dtype, device, batch=batch, queries=length, keys=length,
        heads=heads,
    )  # fmt: skip
    cell.flops = 2 * batch * heads * length * length * HEAD_DIM
    add_paged_peers(cell, plain)
    k, v = together()
    q = plain[0].view(batch, length, heads, HEAD_DIM).transpose(1, 2).contiguous()
    kept = cell.results

    def results(provider: str, result: object) -> list[Tensor]:
        if provider.startswith("torch"):
            assert isinstance(result, Tensor)  # noqa: S101  # product made it
            result = result.transpose(1, 2)
        return kept(provider, result)

    cell.results = results
    for name, backend in backends(device.torch).items():
        cell.calls[f"torch_{name}"] = partial(product, backend, q, k, v, causal=True)
    yield cell


def backends(device: torch.device) -> dict[str, SDPBackend | None]:
    """Kernels of torch's product by name; on the CPU the one that it has."""
    return dict(BACKENDS) if device.type == "cuda" else {"default": None}


def sampled(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Torch's way of drawing from the likeliest tokens, as engines write it."""
    kept, ids = logits.float().topk(top_k)
    weight = kept.softmax(-1)
    weight = weight.masked_fill(weight.cumsum(-1) - weight >= top_p, 0.0)
    return ids.gather(-1, weight.multinomial(1)).squeeze(-1)


def sampling(sizes: Mapping[str, int], dtype: torch.dtype, device: trivet.Device) -> Iterator[Cell]:
    """Choosing greedily, and from the 50 likeliest tokens with 0.9 of their probability."""
    where, n = device.torch, sizes["sequences"]
    torch.manual_seed(n)
    logits = torch.randn(n, sizes["vocab"], dtype=dtype, device=where) * 4
    name = str(dtype).removeprefix("torch.")
    heat = torch.full((n,), 0.8, device=where)
    keep, share = torch.full((n,), 50, device=where).int(), torch.full((n,), 0.9, device=where)
    seed, position = (torch.arange(n, device=where) + i for i in (5, 9))
    kinds: dict[str, tuple[list[Any], dict[str, Call]]] = {
        "greedy": ([logits], {"torch": lambda: logits.argmax(-1)}),
        "top_k_top_p": (
            [logits, heat, keep, share, None, seed, position],
            {"torch": lambda: sampled(logits / 0.8, 50, 0.9)},
        ),
    }
    for kind, (given, peers) in kinds.items():
        rules = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
        absent = rules if kind == "greedy" else ("min_p",)
        names = ["logits", *(n for n in rules if n not in absent)]
        promised: dict[str, Any] = {"dtype": name, "contiguous": names, "vocab": sizes["vocab"]}
        promised |= dict.fromkeys(absent)
        ours = device.bind("sample_token", promised)
        first = next(r for r in device.explain("sample_token", promised) if r.verdict != "no")
        right = device.operators["sample_token"].reference(*given)
        calls: dict[str, Call] = {OURS: partial(ours, *given), **peers}
        yield Cell(
            f"sample_{kind}", dict(sizes), name, logits.nbytes, calls,
            lambda: None, partial(_choices, right, kind), partial(list, [right]), first.provider,
        )  # fmt: skip


def _choices(right: Tensor, kind: str, provider: str, result: object) -> list[Tensor]:
    """What a provider chose; another's noise is its own, so that only its shape can be judged."""
    assert isinstance(result, Tensor)  # noqa: S101  # each returns token ids
    if provider != OURS and kind != "greedy" and result.shape == right.shape:
        return [right]
    return [result.to(right.dtype)]


def prefill_grid() -> Iterator[dict[str, int]]:
    """Numbers of prompts and their length."""
    for n, length in PREFILL:
        yield {"sequences": n, "length": length}


def sampling_grid() -> Iterator[dict[str, int]]:
    """Numbers of rows of logits, and their width."""
    for n in SAMPLED["sequences"]:
        for vocab in SAMPLED["vocab"]:
            yield {"sequences": n, "vocab": vocab}


def decode_grid() -> Iterator[dict[str, int]]:
    """Batches, lengths and groups, small ones first."""
    for context in DECODE["context"]:
        for batch in DECODE["batch"]:
            for group in DECODE["group"]:
                yield {"batch": batch, "context": context, "group": group}
