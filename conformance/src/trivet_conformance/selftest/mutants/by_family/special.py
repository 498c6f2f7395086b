"""Right on ordinary numbers only: killed by the special family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.catalogue.rotary import rotary_embedding
from trivet.catalogue.sampling import sample_token
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


@implements("rms_norm@1", name="nan_becomes_zero")
def nan_becomes_zero(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y.masked_fill(y.isnan(), 0.0)


@implements("rms_norm@1", name="denormals_become_zero")
def denormals_become_zero(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    x = x.masked_fill(x.abs() < torch.finfo(x.dtype).tiny, 0.0)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("rotary_embedding@1", name="infinity_clamped")
def infinity_clamped(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    limit = torch.finfo(q.dtype).max
    found = rotary_embedding.reference(q, k, cos, sin, pairing)
    return [t.clamp(-limit, limit) for t in found]


@implements("linear@1", name="skips_zero_inputs")
def skips_zero_inputs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Zero times infinity is NaN, not nothing."""
    finite = weight.masked_fill(~weight.isfinite(), 0.0)
    y: Tensor = linear.reference(x, finite, bias)
    return y


@implements("sample_token@1", name="nan_never_chosen")
def nan_never_chosen(  # noqa: D103
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    hidden = logits.masked_fill(logits.isnan(), -torch.inf)
    rest = (temperature, top_k, top_p, min_p, seed, position)
    found: Tensor = sample_token.reference(hidden, *rest)
    return found


@implements("silu_and_mul@1", name="empty_call_raises")
def empty_call_raises(x: Tensor) -> Tensor:  # noqa: D103
    if not x.numel():
        msg = "nothing to launch"
        raise ValueError(msg)
    y: Tensor = silu_and_mul.reference(x)
    return y


VARIANTS = variants(
    "special",
    (
        nan_becomes_zero,
        denormals_become_zero,
        infinity_clamped,
        skips_zero_inputs,
        nan_never_chosen,
        empty_call_raises,
    ),
)
