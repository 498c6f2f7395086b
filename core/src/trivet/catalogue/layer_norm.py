"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450)."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue._numerics import up
from trivet.contracts import Cases, operator


def _oracle(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The variance from what is left when the mean is taken off."""
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdim=True) / x.shape[-1]
    result = centred / torch.sqrt(variance + eps)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


@operator(
    shapes={"x": "*tokens hidden", "weight": "hidden", "bias": "hidden"},
    dtypes={"weight": "W", "bias": "W"},
    returns=[("*tokens hidden", "x")],
    inplace={"x": 0},
    cases=Cases(
        sizes=(
            {"tokens": 1, "hidden": 128},
            {"tokens": 7, "hidden": 576},
            {"tokens": 130, "hidden": 514},
            {"tokens": 3, "hidden": 1},
            {"tokens": 0, "hidden": 64},
        ),
        scalars=({}, {"eps": 1e-3}),
    ),
    oracle=_oracle,
)
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Takes off each row's mean, divides by its standard deviation, then scales and shifts.

    Source: arXiv:1607.06450. ``(x - mean) / sqrt(variance + eps) * weight + bias``, where the
    variance divides by the number of elements; computed in at least float32, rounded once. An
    absent ``weight`` is 1 and an absent ``bias`` is 0; both have one dtype.
    """
    f = torch.nn.functional.layer_norm(up(x), (x.shape[-1],), eps=eps)
    if weight is not None:
        f = f * up(weight)
    return (f if bias is None else f + up(bias)).to(x.dtype)
