"""rms_norm and fused_add_rms_norm: two passes over rows that stay in the cache."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, equal, implements, rows
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, sources

_SOURCES: Final = sources("norm.h", "norm_op.h")
_rms_norm, _rms_norm_prefix = op("rms_norm"), op("rms_norm_prefix")
_rms_norm_inplace, _rms_norm_prefix_inplace = op("rms_norm_"), op("rms_norm_prefix_")
_rms_norm_out, _rms_norm_prefix_out = op("rms_norm_out"), op("rms_norm_prefix_out")
_fused, _fused_prefix = op("fused_add_rms_norm"), op("fused_add_rms_norm_prefix")
_fused_inplace, _fused_prefix_inplace = op("fused_add_rms_norm_"), op("fused_add_rms_norm_prefix_")
_fused_out, _fused_prefix_out = op("fused_add_rms_norm_out"), op("fused_add_rms_norm_prefix_out")

_NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    rows("x"),
]
_FUSED: Final[list[Term]] = [*_NORM, equal("residual.dtype", "x.dtype"), rows("residual")]


@implements(
    "rms_norm@1",
    name="vec",
    domain=_NORM,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    try:
        if variance_size:
            result: Tensor = _rms_norm_prefix(
                x, weight, eps, weight_offset, weight_in_float32, variance_size
            )
        else:
            result = _rms_norm(x, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "rms_norm_@1",
    name="vec",
    domain=_NORM,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def rms_norm_(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    """Normalises the rows of ``x`` in place."""
    try:
        if variance_size:
            _rms_norm_prefix_inplace(
                x, weight, eps, weight_offset, weight_in_float32, variance_size
            )
        else:
            _rms_norm_inplace(x, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)


@implements(
    "rms_norm_out@1",
    name="vec",
    domain=[*_NORM, rows("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def rms_norm_out(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
    *,
    out: Tensor,
) -> None:
    """Normalises rows into ``out``."""
    try:
        if variance_size:
            _rms_norm_prefix_out(
                x, weight, eps, weight_offset, weight_in_float32, variance_size, out
            )
        else:
            _rms_norm_out(x, weight, eps, weight_offset, weight_in_float32, out)
    except RuntimeError as error:
        refuse(error)


@implements(
    "fused_add_rms_norm@1",
    name="vec",
    domain=_FUSED,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Adds and normalises into two fresh tensors."""
    try:
        if variance_size:
            result: tuple[Tensor, Tensor] = _fused_prefix(
                x, residual, weight, eps, weight_offset, weight_in_float32, variance_size
            )
        else:
            result = _fused(x, residual, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "fused_add_rms_norm_@1",
    name="vec",
    domain=_FUSED,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    """Adds into ``residual`` and normalises into ``x``."""
    try:
        if variance_size:
            _fused_prefix_inplace(
                x, residual, weight, eps, weight_offset, weight_in_float32, variance_size
            )
        else:
            _fused_inplace(x, residual, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)


@implements(
    "fused_add_rms_norm_out@1",
    name="vec",
    domain=_FUSED,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def fused_add_rms_norm_out(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
    *,
    out: list[Tensor],
) -> None:
    """Adds and normalises into ``out``: the normalised rows, then the sum."""
    y, total = out
    try:
        if variance_size:
            _fused_prefix_out(
                x, residual, weight, eps, weight_offset, weight_in_float32, variance_size, y, total
            )
        else:
            _fused_out(x, residual, weight, eps, weight_offset, weight_in_float32, y, total)
    except RuntimeError as error:
        refuse(error)
