"""Token embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.contracts import Budget, Cases, operator


def _oracle(ids: Tensor, weight: Tensor) -> Tensor:
    rows = [weight[i] for i in ids.flatten().tolist()]
    flat = torch.stack(rows) if rows else weight[:0]
    return flat.reshape(*ids.shape, weight.shape[1])


def _inputs(dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator) -> dict[str, Any]:
    del dtype
    ids = torch.randint(0, dims["vocab"], (dims["tokens"],), generator=rng)
    if dims["tokens"]:
        ids[-1] = dims["vocab"] - 1
    return {"ids": ids}


@operator(
    shapes={"ids": "*tokens", "weight": "vocab hidden"},
    dtypes={"ids": "int64"},
    returns=[("*tokens hidden", "weight")],
    moved=[("*tokens", "ids"), ("*tokens hidden", "weight"), ("*tokens hidden", "weight")],
    cases=Cases(
        sizes=(
            {"tokens": 7, "vocab": 101, "hidden": 64},
            {"tokens": 1, "vocab": 70_001, "hidden": 8},
            {"tokens": 0, "vocab": 5, "hidden": 3},
        ),
        inputs=_inputs,
    ),
    budget=Budget("exact"),
    oracle=_oracle,
    properties=("deterministic", "batch_invariant"),
)
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Gathers one row of ``weight`` ``[vocab, hidden]`` for each id (int64)."""
    return torch.nn.functional.embedding(ids, weight)
