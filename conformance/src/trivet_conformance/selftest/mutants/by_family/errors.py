"""Right for every call, wrong about what is none: killed by the errors family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet.errors import DomainError
from trivet_conformance.selftest.mutants.variant import variants

_left: list[bool] = []


@implements("silu_and_mul@1", name="zeros_for_no_dims")
def zeros_for_no_dims(x: Tensor) -> Tensor:
    """Answers a tensor without dims with a zero."""
    if x.dim() == 0:
        return torch.zeros_like(x)
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("linear@1", name="breaks_down_on_a_narrow_weight")
def breaks_down_on_a_narrow_weight(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Ends in an error of the interpreter where a check would have told why."""
    if weight.shape[-1:] != x.shape[-1:]:
        msg = "wild read"
        raise SystemError(msg)
    y: Tensor = linear.reference(x, weight, bias)
    return y


@implements("rms_norm@1", name="stays_broken_after_an_error")
def stays_broken_after_an_error(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    if weight.shape != x.shape[-1:]:
        _left.append(True)
        msg = "weight is not as wide as x"
        raise DomainError(msg)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    if _left:
        _left.clear()
        return torch.zeros_like(y)
    return y


VARIANTS = variants(
    "errors",
    (
        zeros_for_no_dims,
        breaks_down_on_a_narrow_weight,
        stays_broken_after_an_error,
    ),
)
