"""Right results, and memory touched or shared that is not theirs: killed by the alias family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


@implements("rms_norm@1", name="mutates_its_input")
def mutates_its_input(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    weight.mul_(2)
    return y


@implements("rms_norm@1", name="result_in_the_input")
def result_in_the_input(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return x.copy_(y) if x.is_contiguous() else y


_buffers: dict[object, Tensor] = {}


@implements("silu_and_mul@1", name="one_buffer_for_all_calls")
def one_buffer_for_all_calls(x: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = silu_and_mul.reference(x)
    return _buffers.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)


@implements("silu_and_mul@1", name="writes_past_the_end")
def writes_past_the_end(x: Tensor) -> Tensor:  # noqa: D103
    if x.numel() and x.is_contiguous():
        end = x.storage_offset() + x.numel()
        if end < x.untyped_storage().nbytes() // x.dtype.itemsize:
            torch.as_strided(x, (1,), (1,), end).zero_()
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("rms_norm@1", name="forms_that_differ")
def functional_as_it_is(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("rms_norm_@1", name="forms_that_differ")
def inplace_rounded_once(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    del weight_in_float32
    scalars = (eps, weight_offset, False, variance_size)
    x.copy_(rms_norm.reference(x.double(), weight.double(), *scalars))


@implements("rms_norm_@1", name="scribbles_between_rows")
def scribbles_between_rows(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    x.copy_(rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size))
    if x.dim() == 2 and x.shape[0] > 1 and x.stride(0) > x.shape[1]:
        x.as_strided((1,), (1,), x.storage_offset() + x.shape[1]).fill_(0)


@implements("linear@1", name="writes_the_bias_back")
def writes_the_bias_back(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, weight, bias)
    if bias is not None:
        bias.add_(1)
    return y


VARIANTS = variants(
    "alias",
    (
        mutates_its_input,
        result_in_the_input,
        one_buffer_for_all_calls,
        writes_past_the_end,
        functional_as_it_is,
        inplace_rounded_once,
        scribbles_between_rows,
        writes_the_bias_back,
    ),
)
