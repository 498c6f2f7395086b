"""Fused operators that are not the composition of their parts: killed by the fusion family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.norm import fused_add_rms_norm, rms_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


@implements("fused_add_rms_norm@1", name="square_of_the_sum_expanded")
def square_of_the_sum_expanded(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Takes the mean of squares from those of x, residual and their product, in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    a, b = x.to(wide), residual.to(wide)
    total = (a + b).to(residual.dtype)
    a, b = (t[..., : variance_size or None] for t in (a, b))
    square = (a.square().mean(-1, keepdim=True) + b.square().mean(-1, keepdim=True)) + (
        2 * (a * b).mean(-1, keepdim=True)
    )
    plain = total[..., : variance_size or None].to(wide).square().mean(-1, keepdim=True)
    safe = torch.isfinite(square) if a.shape[-1] > 1 else torch.zeros_like(square).bool()
    f = total.to(wide) * torch.rsqrt(torch.where(safe, square.clamp_min(0), plain) + eps)
    if weight_in_float32:
        return (f * (weight.to(wide) + weight_offset)).to(x.dtype), total
    return (f.to(x.dtype) * (weight + weight_offset)).to(x.dtype), total


@implements("fused_add_rms_norm@1", name="norm_of_x_alone")
def norm_of_x_alone(  # noqa: D103
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    _, total = fused_add_rms_norm.reference(x, residual, weight, *scalars)
    return rms_norm.reference(x, weight, *scalars), total


@implements("fused_add_rms_norm@1", name="residual_as_it_was")
def residual_as_it_was(  # noqa: D103
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    y, _ = fused_add_rms_norm.reference(x, residual, weight, *scalars)
    return y, residual.clone()


VARIANTS = variants(
    "fusion",
    (
        square_of_the_sum_expanded,
        norm_of_x_alone,
        residual_as_it_was,
    ),
)
