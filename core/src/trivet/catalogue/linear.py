"""Affine maps, from a plain weight and from a prepared one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._numerics import linear_map
from trivet.contracts import Budget, Cases, operator
from trivet.errors import DomainError

_SIZES = (
    {"tokens": 1, "in_features": 64, "out_features": 96},
    {"tokens": 7, "in_features": 576, "out_features": 33},
    {"tokens": 65, "in_features": 127, "out_features": 64},
    {"tokens": 0, "in_features": 8, "out_features": 4},
)


_BUDGET = Budget(factor=3.0)
"""Measured (benchmarks/budgets.py): plain order uses up to 1.9 of a budget of factor 2."""


def _linear_oracle(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One sum of products for each row of the weight."""
    columns = [(x * row).sum(-1) for row in weight]
    result = torch.stack(columns, -1)
    return result if bias is None else result + bias


def _packed_oracle(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    return _linear_oracle(x, packed[0].view(out_features, -1), bias)


def _packed_inputs(
    dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator
) -> dict[str, Any]:
    """A height of whole 32s has sixteen numbers a row, as weights of quantised files have."""
    rows, columns = dims["out_features"], dims["in_features"]
    weight = torch.randn(rows, columns, generator=rng)
    if rows % 32 == 0:
        least = (16 * torch.randn(rows, 1, generator=rng)).round()
        weight = (((weight.clamp(-2, 2) + 2) * 3.75).round() + least) / 16
    return {"packed": [weight.to(dtype)]}


def _keep(facts: Mapping[str, Any], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The weight itself, if it is one for these facts."""
    del bias
    fix = "prepare the weight at the site that it belongs to, in the site's dtype"
    for name, size in zip(("out_features", "in_features"), weight.shape, strict=False):
        if isinstance(known := facts.get(name), int) and known != size:
            msg = f"{name} is {known}, the weight is {list(weight.shape)}"
            raise DomainError(msg, fix=fix)
    if facts.get("x.dtype", weight.dtype) != weight.dtype:
        msg = f"the activations are {facts['x.dtype']}, the weight is {weight.dtype}"
        raise DomainError(msg, fix=fix)
    return [weight]


@operator(
    shapes={
        "x": "*tokens in_features",
        "weight": "out_features in_features",
        "bias": "out_features",
    },
    returns=[("*tokens out_features", "x")],
    cases=Cases(sizes=_SIZES),
    oracle=_linear_oracle,
    budget=_BUDGET,
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes ``x @ weight.T + bias``; ``weight`` is ``[out_features, in_features]``."""
    return linear_map(x, weight, bias)


@operator(
    shapes={"x": "*tokens in_features", "bias": "out_features"},
    returns=[("*tokens out_features", "x")],
    cases=Cases(sizes=_SIZES, inputs=_packed_inputs),
    moved=[
        ("*tokens in_features", "x"),
        ("out_features in_features", "x"),
        ("*tokens out_features", "x"),
    ],
    oracle=_packed_oracle,
    budget=_BUDGET,
    prepare=_keep,
)
def linear_packed(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Computes ``x @ weight.T + bias`` from a weight that a provider prepared.

    ``packed`` is what ``plan.prepare(site, weight, bias)`` made for the chosen provider; the
    reference's is ``[weight]``. The width is an argument because no tensor says it.
    """
    if packed[0].shape[0] != out_features:
        msg = f"linear_packed: out_features is {out_features}, the pack is {list(packed[0].shape)}"
        raise DomainError(msg, fix="pass the width of the weight that was prepared")
    return linear_map(x, packed[0], bias)
