"""layer_norm: two or three passes over rows that stay in the cache."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, implements, rows
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, sources

_SOURCES: Final = sources("layer_norm.h", "layer_norm_op.h")
_layer_norm = op("layer_norm")
_layer_norm_inplace = op("layer_norm_")
_layer_norm_out = op("layer_norm_out")

_DOMAIN: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    dtype("bias", *FLOATS),
    rows("x"),
]


@implements(
    "layer_norm@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    try:
        result: Tensor = _layer_norm(x, weight, bias, eps)
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "layer_norm_@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def layer_norm_(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    """Normalises the rows of ``x`` in place."""
    try:
        _layer_norm_inplace(x, weight, bias, eps)
    except RuntimeError as error:
        refuse(error)


@implements(
    "layer_norm_out@1",
    name="vec",
    domain=[*_DOMAIN, rows("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def layer_norm_out(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    out: Tensor,
) -> None:
    """Normalises rows into ``out``."""
    try:
        _layer_norm_out(x, weight, bias, eps, out)
    except RuntimeError as error:
        refuse(error)
