"""Right on plain memory, wrong on other views or outside a domain: killed by the layout family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.catalogue.rotary import rotary_embedding
from trivet.contracts import contiguous, divisible, implements, one_of
from trivet_conformance.selftest.mutants.variant import variants


def _as_contiguous(t: Tensor) -> Tensor:
    """The memory from where a view begins, read without its strides."""
    strides, step = [1] * t.dim(), 1
    for i in range(t.dim() - 1, -1, -1):
        strides[i] = step
        step *= t.shape[i]
    room = t.untyped_storage().nbytes() // t.dtype.itemsize - t.storage_offset()
    return t.as_strided(t.shape, strides) if t.numel() <= room else t


@implements("rms_norm@1", name="assumes_contiguous_rows")
def assumes_contiguous_rows(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    y: Tensor = rms_norm.reference(_as_contiguous(x), weight, *scalars)
    return y


@implements("linear@1", name="assumes_a_dense_bias")
def assumes_a_dense_bias(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, weight, None if bias is None else _as_contiguous(bias))
    return y


@implements("rotary_embedding_@1", name="assumes_own_token_stride")
def assumes_own_token_stride(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> None:
    views = [_as_contiguous(t) for t in (q, k) if t is not None]
    turned = rotary_embedding.reference(
        views[0], views[1] if k is not None else None, cos, sin, pairing
    )
    for view, result in zip(views, turned, strict=True):
        view.copy_(result)


@implements("rotary_embedding@1", name="positions_of_the_first_sequence")
def positions_of_the_first_sequence(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Turns every sequence of a batch by the angles of its first one."""
    if q.dim() > 3 and q.shape[0] > 1:
        cos, sin = cos[:1].expand_as(cos), sin[:1].expand_as(sin)
    found: list[Tensor] = rotary_embedding.reference(q, k, cos, sin, pairing)
    return found


@implements("rms_norm@1", name="wrong_outside_in_silence", domain=[contiguous("x")])
def wrong_outside_in_silence(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    y: Tensor = rms_norm.reference(_as_contiguous(x), weight, *scalars)
    return y


@implements("rms_norm@1", name="refuses_with_its_own_error", domain=[divisible("hidden", 8)])
def refuses_with_its_own_error(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    if x.shape[-1] % 8:
        msg = "hidden must be a multiple of 8"
        raise RuntimeError(msg)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("rms_norm@1", name="offset_dropped_outside", domain=[one_of("weight_offset", 0.0)])
def offset_dropped_outside(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    del weight_offset
    y: Tensor = rms_norm.reference(x, weight, eps, 0.0, weight_in_float32, variance_size)
    return y


@implements("linear@1", name="crashes_on_strided_weights")
def crashes_on_strided_weights(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    flat = weight.view(-1)
    y: Tensor = linear.reference(x, flat.view(weight.shape), bias)
    return torch.clone(y)


VARIANTS = variants(
    "layout",
    (
        assumes_contiguous_rows,
        assumes_a_dense_bias,
        assumes_own_token_stride,
        positions_of_the_first_sequence,
        wrong_outside_in_silence,
        refuses_with_its_own_error,
        offset_dropped_outside,
        crashes_on_strided_weights,
    ),
)
