"""Layer normalisation: wrong variances, a bias that is dropped, and one legal pass over a row."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.layer_norm import layer_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import Variant, variants

CHUNK = 64
"""Elements whose mean and squares are joined with those of the elements before them."""


def _up(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _shaped(f: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The end of a norm: scaled, shifted, rounded once."""
    if weight is not None:
        f = f * _up(weight)
    return (f if bias is None else f + _up(bias)).to(x.dtype)


@implements("layer_norm@1", name="variance_by_difference")
def variance_by_difference(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The mean of the squares less the square of the mean, which cancel."""
    f = _up(x)
    mean = f.mean(-1, keepdim=True)
    square = f.pow(2).mean(-1, keepdim=True)
    variance = torch.where(square.isinf(), square, square - mean.pow(2)).clamp_min(0)
    return _shaped((f - mean) * torch.rsqrt(variance + eps), x, weight, bias)


@implements("layer_norm@1", name="variance_of_a_sample")
def variance_of_a_sample(  # noqa: D103
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    f = _up(x)
    centred = f - f.mean(-1, keepdim=True)
    variance = centred.pow(2).sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)
    return _shaped(centred * torch.rsqrt(variance + eps), x, weight, bias)


@implements("layer_norm@1", name="shift_forgotten")
def shift_forgotten(  # noqa: D103
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    del bias
    return torch.as_tensor(layer_norm.reference(x, weight, None, eps))


@implements("layer_norm@1", name="eps_beside_the_deviation")
def eps_beside_the_deviation(  # noqa: D103
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    f = _up(x)
    centred = f - f.mean(-1, keepdim=True)
    deviation = centred.pow(2).mean(-1, keepdim=True).sqrt()
    return _shaped(centred / (deviation + eps), x, weight, bias)


@implements("layer_norm@1", name="one_pass")
def one_pass(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Joins the moments of chunks as they come (Chan et al. 1979)."""
    f = _up(x)
    first, *others = torch.split(f, CHUNK, -1)
    mean, count = first.mean(-1, keepdim=True), first.shape[-1]
    squares = (first - mean).pow(2).sum(-1, keepdim=True)
    for chunk in others:
        own, size = chunk.mean(-1, keepdim=True), chunk.shape[-1]
        step, count = own - mean, count + size
        mean = mean + step * (size / count)
        squares = squares + (chunk - own).pow(2).sum(-1, keepdim=True)
        squares = squares + step.pow(2) * (size * (count - size) / count)
    variance = squares / count
    return _shaped((f - mean) * torch.rsqrt(variance + eps), x, weight, bias)


VARIANTS: tuple[Variant, ...] = (
    *variants(
        "value",
        (
            variance_of_a_sample,
            shift_forgotten,
            eps_beside_the_deviation,
        ),
    ),
    *variants("special", (variance_by_difference,)),
    *variants("", (one_pass,)),
)
