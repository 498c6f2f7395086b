"""A small operator and marked functions on it, for tests that need no operator of the catalogue."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts import Cases, operator


def _oracle(
    x: Tensor, scale: float = 2.0, bias: Tensor | None = None, kind: str = "plain"
) -> Tensor:
    del kind
    total = x * (scale / 2) + x * (scale / 2)
    return total if bias is None else bias + total


@operator(
    shapes={"x": "*tokens width", "bias": "width"},
    dtypes={"bias": "B"},
    returns=[("*tokens width", "x")],
    inplace={"x": 0},
    choices={"kind": ("plain", "other")},
    cases=Cases(
        sizes=({"tokens": 4, "width": 12}, {"tokens": 1, "width": 7}, {"tokens": 0, "width": 3}),
        scalars=({}, {"scale": 0.5}),
    ),
    oracle=_oracle,
)
def scaled(
    x: Tensor, scale: float = 2.0, bias: Tensor | None = None, kind: str = "plain"
) -> Tensor:
    """Multiplies by ``scale`` and adds ``bias``."""
    del kind
    wide = x.to(torch.promote_types(x.dtype, torch.float32)) * scale
    return (wide if bias is None else wide + bias).to(x.dtype)
