"""Attention over a paged key/value cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._choices import declared
from trivet.catalogue._numerics import matmul, up
from trivet.catalogue.kv_cache import LAYOUTS
from trivet.contracts import Budget, Cases, operator
from trivet.contracts.cases import Relation


def _oracle(  # the operator's signature
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,  # noqa: ARG001
    max_seq_len: int,  # noqa: ARG001
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",  # noqa: ARG001
) -> Tensor:
    """Goes token by token and head by head, with a log-sum-exp in place of a softmax."""
    flat, group = q.reshape(-1, *q.shape[-2:]), q.shape[-2] // k_cache.shape[2]
    out = torch.zeros_like(flat)
    for s, length in enumerate(seq_lens.tolist()):
        start, end = int(query_start[s]), int(query_start[s + 1])
        for token in range(start, end):
            last = length - (end - token)
            first = max(0, last - window + 1) if window else 0
            seen = range(first, last + 1)
            rows = [divmod(j, k_cache.shape[1]) for j in seen]
            blocks = [int(block_table[s, b]) for b, _ in rows]
            for head in range(q.shape[-2] if rows else 0):
                keys = [
                    k_cache[b, r, head // group] for b, (_, r) in zip(blocks, rows, strict=True)
                ]
                scores = torch.stack([torch.dot(flat[token, head], key) for key in keys]) * scale
                if soft_cap:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                weights = torch.exp(scores - torch.logsumexp(scores, 0))
                for w, b, (_, r) in zip(weights, blocks, rows, strict=True):
                    out[token, head] += w * v_cache[b, r, head // group]
    return out.view(q.shape)


def _inputs(dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator) -> dict[str, Any]:
    """Ragged lengths: one empty sequence, one at a page edge, pages in random order."""
    del dtype
    seqs, size, tokens = dims["seqs"], dims["block_size"], dims["tokens"]
    longest = dims["max_blocks"] * size
    queries = torch.ones(seqs, dtype=torch.int64)
    if seqs > 1:
        queries[seqs // 2] = 0
    spare = max(0, tokens - int(queries.sum()) - (tokens > seqs))
    queries[0] = min(int(queries[0]) + spare, longest)
    lens = torch.randint(0, longest + 1, (seqs,), generator=rng)
    lens[-1] = size
    lens = torch.maximum(torch.minimum(lens, torch.tensor(longest)), queries)
    lens[queries == 0] = 0
    table = torch.randint(0, dims["blocks"], (seqs, dims["max_blocks"]), generator=rng)
    start = torch.cat((torch.zeros(1, dtype=torch.int64), queries.cumsum(0)))
    return {
        "block_table": table.int(),
        "query_start": start.int(),
        "seq_lens": lens.int(),
        "max_query_len": int(queries.max()),
        "max_seq_len": int(lens.max()),
        "scale": dims["head_dim"] ** -0.5,
    }


def _pages_moved(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same sequences in other physical pages."""
    last = given["k_cache"].shape[0] - 1
    caches = {n: given[n].flip(0) for n in ("k_cache", "v_cache")}
    return dict(given) | caches | {"block_table": last - given["block_table"]}


def _heads_reversed(given: Mapping[str, Any]) -> dict[str, Any]:
    return dict(given) | {
        "q": given["q"].flip(-2),
        "k_cache": given["k_cache"].flip(2),
        "v_cache": given["v_cache"].flip(2),
    }


def _first_sequence_in_two(given: Mapping[str, Any]) -> dict[str, Any]:
    """The queries of the first sequence as two chunks, each with the keys that it may see."""
    start, lens, table = (given[n] for n in ("query_start", "seq_lens", "block_table"))
    queries = int(start[1])
    first = queries // 2
    cut = start.new_tensor([0, first])
    shorter = lens[:1] - (queries - first) if first else lens[:1] * 0
    return dict(given) | {
        "query_start": torch.cat((cut, start[1:])),
        "seq_lens": torch.cat((shorter, lens)),
        "block_table": torch.cat((table[:1], table)),
    }


_RELATIONS = (
    Relation("pages moved", _pages_moved, lambda results, _: results),
    Relation("heads reversed", _heads_reversed, lambda results, _: [results[0].flip(-2)]),
    Relation("a prefill in two chunks", _first_sequence_in_two, lambda results, _: results),
)

_BUDGET = Budget(factor=3.0)
"""Measured (benchmarks/budgets.py): weights rounded to bfloat16 before they meet the values, as
tensor-core kernels have them, use up to 1.5 of a budget of factor 2; other orders at most 0.67."""

_CACHE = "blocks block_size kv_heads head_dim"


@operator(
    shapes={
        "q": "*tokens heads head_dim",
        "k_cache": _CACHE,
        "v_cache": _CACHE,
        "block_table": "seqs max_blocks",
        "query_start": "seqs+1",
        "seq_lens": "seqs",
    },
    dtypes={
        "k_cache": "C",
        "v_cache": "C",
        "block_table": "int32",
        "query_start": "int32",
        "seq_lens": "int32",
    },
    returns=[("*tokens heads head_dim", "q")],
    choices={"layout": LAYOUTS},
    traceable=False,
    moved=[
        ("*tokens heads head_dim", "q"),
        ("seqs max_seq_len kv_heads head_dim", "k_cache"),
        ("seqs max_seq_len kv_heads head_dim", "v_cache"),
        ("*tokens heads head_dim", "q"),
    ],
    budget=_BUDGET,
    cases=Cases(
        sizes=tuple(
            dict(zip(("tokens", "heads", "kv_heads", "head_dim", "seqs"), a, strict=True))
            | {"block_size": b, "max_blocks": m, "blocks": n}
            for a, b, m, n in (
                ((12, 9, 3, 64, 3), 16, 3, 11),
                ((2, 4, 1, 32, 2), 1, 9, 23),
                ((5, 2, 2, 17, 4), 8, 2, 9),
                ((1, 8, 2, 128, 1), 32, 2, 3),
            )
        ),
        scalars=({}, {"window": 5}, {"soft_cap": 2.0}, {"window": 1, "soft_cap": 30.0}),
        inputs=_inputs,
        relations=_RELATIONS,
    ),
    oracle=_oracle,
)
def paged_attention(  # the batch is ragged and paged
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,  # noqa: ARG001  # an upper bound that the reference does not need
    max_seq_len: int,  # noqa: ARG001
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    """Computes causal attention of ragged queries over a paged cache, prefill and decode mixed.

    Source: arXiv:2309.06180; grouped queries arXiv:2305.13245; sliding window arXiv:2310.06825;
    soft cap arXiv:2408.00118. Rows ``query_start[s] : query_start[s + 1]`` of ``q`` are the last
    tokens of sequence ``s``, whose ``seq_lens[s]`` keys lie in the blocks of ``block_table[s]``.
    A query sees keys up to its own, at most ``window`` of them (0: all). Scores are
    ``soft_cap * tanh(score / soft_cap)`` (0: as they are). The maxima are upper bounds: any value
    >= the true one gives the same result. Rows that no sequence covers, and rows that see no
    key, are zeros.
    """
    declared("layout", layout, LAYOUTS)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    (size, kv_heads, head_dim), group = k_cache.shape[1:], q.shape[-2] // k_cache.shape[2]
    queries, results = (t.reshape(-1, *q.shape[-2:]) for t in (q, out))
    wide = torch.promote_types(up(q).dtype, k_cache.dtype)
    bounds = query_start.tolist()
    for s, length in enumerate(seq_lens.tolist()):
        start, end = bounds[s], bounds[s + 1]
        if start == end or length == 0:
            continue
        # pages that no query's window reaches are not read: they may hold anything
        page = max(0, length - (end - start) + 1 - window) // size if window else 0
        pages = block_table[s, page : math.ceil(length / size)].long()
        k, v = (
            cache[pages].reshape(-1, kv_heads, head_dim)[: length - page * size].to(wide)
            for cache in (k_cache, v_cache)
        )
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        rows = queries[start:end].to(wide).view(end - start, kv_heads, group, head_dim)
        rows = rows.permute(1, 2, 0, 3)
        scores = matmul(rows.flatten(1, 2), k.mT) * scale
        scores = scores.view(kv_heads, group, end - start, length - page * size)
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        own = torch.arange(length - (end - start), length, device=q.device)[:, None]
        key = torch.arange(page * size, length, device=q.device)[None]
        hidden = key > own
        if window:
            hidden = hidden | (key <= own - window)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        mixed = matmul(weights.flatten(1, 2), v).view(kv_heads, group, end - start, head_dim)
        mixed = mixed.permute(2, 0, 1, 3).reshape(end - start, -1, head_dim)
        results[start:end] = mixed.to(q.dtype)
    return out
