"""Attention over dense keys and values: encoders, cross attention, bridges to other frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._numerics import matmul, up
from trivet.contracts import Budget, Cases, operator
from trivet.contracts.cases import Relation
from trivet.errors import DomainError


def _oracle(  # the operator's signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Goes query by query and key by key, with a log-sum-exp in place of a softmax."""
    (batch, queries, heads, _), (keys, kv_heads) = q.shape, k.shape[1:3]
    out = q.new_zeros(batch, queries, heads, v.shape[-1])
    for b, i, head in torch.cartesian_prod(*map(torch.arange, (batch, queries, heads))).tolist():
        scores, values = [], []
        for j in range(keys):
            ahead, bias = j - (keys - queries + i), q.new_zeros(())
            far = window and (ahead <= -window or ahead >= window)
            if mask is not None:
                place = [
                    n if size > 1 else 0
                    for n, size in zip((b, head, i), mask.shape[:3], strict=True)
                ]
                entry = mask[(*place, j)]
                bias = entry if mask.dtype.is_floating_point else entry.double().log()  # 0, -inf
            if far or (causal and ahead > 0) or bias == -torch.inf:
                continue
            group = head // (heads // kv_heads)
            score = torch.dot(q[b, i, head], k[b, j, group]) * scale
            scores.append((soft_cap * torch.tanh(score / soft_cap) if soft_cap else score) + bias)
            values.append(v[b, j, group])
        if scores:
            row = torch.stack(scores)
            weights = torch.exp(row - torch.logsumexp(row, 0))
            out[b, i, head] = (weights[:, None] * torch.stack(values)).sum(0)
    return out


def _inputs(dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator) -> dict[str, Any]:
    """A mask that all heads share is of bools, as padding is; one with heads is drawn: a bias."""
    del dtype
    made: dict[str, Any] = {"scale": dims["head_dim"] ** -0.5}
    if dims.get("mask_heads") == 1:
        shape = [dims[n] for n in ("mask_batch", "mask_heads", "mask_queries", "keys")]
        mask = torch.rand(shape, generator=rng) < 0.7  # most may be seen
        mask[:1, :, :1] = False  # a row that sees nothing
        made["mask"] = mask
    return made


def _heads_reversed(given: Mapping[str, Any]) -> dict[str, Any]:
    flipped = {n: given[n].flip(2) for n in ("q", "k", "v")}
    mask = given["mask"]
    return dict(given) | flipped | {"mask": mask if mask is None else mask.flip(1)}


def _last_query_alone(given: Mapping[str, Any]) -> dict[str, Any]:
    """Positions are aligned at the end, so that it sees what it saw."""
    mask = given["mask"]
    return dict(given) | {
        "q": given["q"][:, -1:].contiguous(),
        "mask": mask if mask is None else mask[:, :, -1:].contiguous(),
    }


def _last_of_the_batch_alone(given: Mapping[str, Any]) -> dict[str, Any]:
    mask = given["mask"]
    return dict(given) | {
        n: t if t is None else t[-1:].contiguous()
        for n, t in {"mask": mask, **{n: given[n] for n in ("q", "k", "v")}}.items()
    }


_RELATIONS = (
    Relation("heads reversed", _heads_reversed, lambda results, _: [results[0].flip(2)]),
    Relation("the last query alone", _last_query_alone, lambda results, _: [results[0][:, -1:]]),
    Relation(
        "the last of the batch alone",
        _last_of_the_batch_alone,
        lambda results, _: [results[0][-1:]],
    ),
)

_BUDGET = Budget(factor=3.0)
"""As for paged_attention: weights rounded to bfloat16 before they meet the values are legal."""

_DIMS = ("batch", "queries", "heads", "head_dim", "keys", "kv_heads", "value_dim")
_MASK_DIMS = ("mask_batch", "mask_heads", "mask_queries")


def _sizes(plain: tuple[int, ...], *mask: int) -> dict[str, int]:
    return dict(zip(_DIMS, plain, strict=True)) | dict(zip(_MASK_DIMS, mask, strict=bool(mask)))


def _refuse(what: str, fix: str) -> None:
    msg = f"attention: {what}"
    raise DomainError(msg, fix=fix)


def _check(q: Tensor, k: Tensor, mask: Tensor | None, window: int, soft_cap: float) -> None:
    """Refuses what no shape text says.

    Raises:
        DomainError: kv_heads does not divide heads; a dim of the mask is neither 1 nor the
            call's; the mask has neither bools nor floating numbers; a scalar is negative.
    """
    batch, queries, heads, _ = q.shape
    if k.shape[2] < 1 or heads % k.shape[2]:
        _refuse(f"k has {k.shape[2]} heads, q has {heads}", "kv_heads must divide heads")
    if window < 0 or soft_cap < 0:
        name, value = ("window", window) if window < 0 else ("soft_cap", soft_cap)
        _refuse(f"{name} is {value}", "0 means none")
    if mask is None:
        return
    wanted = (batch, heads, queries)
    if any(n not in (1, full) for n, full in zip(mask.shape, wanted, strict=False)):
        what = f"mask has shape {list(mask.shape)}, q {list(q.shape)}"
        _refuse(what, "its dims batch, heads and queries are those of the call or 1")
    if mask.dtype is not torch.bool and not mask.dtype.is_floating_point:
        _refuse(f"mask is {mask.dtype}", "bool (True: may be seen) or floating numbers to add")


def _hidden(
    mask: Tensor | None,
    queries: int,
    keys: int,
    device: torch.device,
    *,
    causal: bool,
    window: int,
) -> Tensor:
    """Which keys a query does not see, as ``[batch or 1, heads or 1, queries, keys]``."""
    own = torch.arange(keys - queries, keys, device=device)[:, None]
    ahead = torch.arange(keys, device=device) - own
    hidden = ahead > 0 if causal else torch.zeros_like(ahead, dtype=torch.bool)
    if window:
        hidden = hidden | (ahead <= -window) | (ahead >= window)
    if mask is None:
        return hidden
    return hidden | (mask == -torch.inf if mask.dtype.is_floating_point else ~mask)


@operator(
    shapes={
        "q": "batch queries heads head_dim",
        "k": "batch keys kv_heads head_dim",
        "v": "batch keys kv_heads value_dim",
        "mask": "mask_batch mask_heads mask_queries keys",
    },
    dtypes={"mask": "M"},
    returns=[("batch queries heads value_dim", "q")],
    budget=_BUDGET,
    cases=Cases(
        sizes=(
            _sizes((2, 7, 3, 64, 7, 3, 64)),
            _sizes((2, 5, 4, 32, 9, 2, 32), 2, 1, 1),
            _sizes((2, 6, 4, 16, 6, 2, 16), 1, 4, 6),
            _sizes((1, 3, 6, 24, 11, 2, 40), 1, 1, 3),
            _sizes((2, 9, 2, 17, 4, 1, 17)),  # with causal, queries that see nothing
            _sizes((3, 1, 8, 128, 70, 2, 128)),
            _sizes((1, 2, 2, 8, 0, 1, 8)),
            _sizes((1, 0, 2, 8, 3, 1, 8)),
        ),
        scalars=(
            {},
            {"causal": True},
            {"causal": True, "window": 3},
            {"window": 2},
            {"soft_cap": 2.0},
            {"causal": True, "soft_cap": 30.0},
        ),
        inputs=_inputs,
        relations=_RELATIONS,
    ),
    oracle=_oracle,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Computes attention of dense queries over dense keys and values.

    Source: arXiv:1706.03762; grouped queries arXiv:2305.13245; soft cap arXiv:2408.00118. Head
    ``h`` uses key head ``h // (heads / kv_heads)``. Scores are ``scale * q k``, then
    ``soft_cap * tanh(score / soft_cap)`` (0: as they are), then a floating mask is added. A mask
    is ``[batch or 1, heads or 1, queries or 1, keys]``; False and ``-inf`` hide a key, and
    hidden keys have no part in a row.

    Query ``i`` has the position ``keys - queries + i``: positions are aligned at the end. With
    ``causal`` it sees keys up to its own; with ``window`` those less than ``window`` away (0:
    all). A query that sees no key gives zeros. Results are contiguous.
    """
    _check(q, k, mask, window, soft_cap)
    (batch, queries, heads, head_dim), (keys, kv_heads), value_dim = (
        q.shape,
        k.shape[1:3],
        v.shape[3],
    )
    wide, rows = up(q).dtype, heads // kv_heads * queries
    folded = q.to(wide).transpose(1, 2).reshape(batch, kv_heads, rows, head_dim)
    scores = matmul(folded, k.to(wide).permute(0, 2, 3, 1)) * scale
    scores = scores.view(batch, heads, queries, keys)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if mask is not None and mask.dtype.is_floating_point:
        scores = scores + mask.to(wide)
    hidden = _hidden(mask, queries, keys, q.device, causal=causal, window=window)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    mixed = matmul(weights.view(batch, kv_heads, rows, keys), v.to(wide).transpose(1, 2))
    mixed = mixed.view(batch, heads, queries, value_dim).transpose(1, 2)
    return mixed.to(q.dtype).contiguous()
