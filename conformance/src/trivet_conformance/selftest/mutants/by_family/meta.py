"""Right numbers in the wrong shape, dtype, strides or container: killed by the meta family."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.embedding import embedding
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import fused_add_rms_norm, rms_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


@implements("rms_norm@1", name="returns_float32")
def returns_float32(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y.float()


@implements("silu_and_mul@1", name="leading_dims_folded")
def leading_dims_folded(x: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = silu_and_mul.reference(x)
    return y.reshape(-1, y.shape[-1])


@implements("linear@1", name="result_transposed_in_memory")
def result_transposed_in_memory(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, weight, bias)
    return y.mT.contiguous().mT if y.dim() > 1 else y


@implements("fused_add_rms_norm@1", name="list_for_a_tuple")
def list_for_a_tuple(  # noqa: D103
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Any:
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    return list(fused_add_rms_norm.reference(x, residual, weight, *scalars))


class Lazy(Tensor):
    """A result that could do its work when it is looked at."""


@implements("embedding@1", name="tensor_subclass")
def tensor_subclass(ids: Tensor, weight: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = embedding.reference(ids, weight)
    return y.as_subclass(Lazy)


VARIANTS = variants(
    "meta",
    (
        returns_float32,
        leading_dims_folded,
        result_transposed_in_memory,
        list_for_a_tuple,
        tensor_subclass,
    ),
)
