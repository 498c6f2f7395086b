"""rms_norm and fused_add_rms_norm: two passes over rows that stay in the cache."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, equal, implements, rows
from trivet_cpu._library import op, refuse, sources

_SOURCES: Final = sources("norm.h", "norm_op.h")
_rms_norm = op("rms_norm")
_rms_norm_inplace = op("rms_norm_")
_rms_norm_out = op("rms_norm_out")
_fused = op("fused_add_rms_norm")
_fused_inplace = op("fused_add_rms_norm_")
_fused_out = op("fused_add_rms_norm_out")

_NORM: Final[list[Term]] = [
    dtype("x", "float32", "bfloat16"),
    dtype("weight", "float32", "bfloat16"),
    rows("x"),
]
_FUSED: Final[list[Term]] = [*_NORM, equal("residual.dtype", "x.dtype"), rows("residual")]


@implements(
    "rms_norm@1",
    name="vec",
    domain=_NORM,
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    try:
        result: Tensor = _rms_norm(x, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "rms_norm_@1",
    name="vec",
    domain=_NORM,
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
)
def rms_norm_(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> None:
    """Normalises the rows of ``x`` in place."""
    try:
        _rms_norm_inplace(x, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)


@implements(
    "rms_norm_out@1",
    name="vec",
    domain=[*_NORM, rows("out")],
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
)
def rms_norm_out(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    *,
    out: Tensor,
) -> None:
    """Normalises rows into ``out``."""
    try:
        _rms_norm_out(x, weight, eps, weight_offset, weight_in_float32, out)
    except RuntimeError as error:
        refuse(error)


@implements(
    "fused_add_rms_norm@1",
    name="vec",
    domain=_FUSED,
    sources=_SOURCES,
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
) -> tuple[Tensor, Tensor]:
    """Adds and normalises into two fresh tensors."""
    try:
        result: tuple[Tensor, Tensor] = _fused(
            x, residual, weight, eps, weight_offset, weight_in_float32
        )
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "fused_add_rms_norm_@1",
    name="vec",
    domain=_FUSED,
    sources=_SOURCES,
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
) -> None:
    """Adds into ``residual`` and normalises into ``x``."""
    try:
        _fused_inplace(x, residual, weight, eps, weight_offset, weight_in_float32)
    except RuntimeError as error:
        refuse(error)


@implements(
    "fused_add_rms_norm_out@1",
    name="vec",
    domain=_FUSED,
    sources=_SOURCES,
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
    *,
    out: list[Tensor],
) -> None:
    """Adds and normalises into ``out``: the normalised rows, then the sum."""
    y, total = out
    try:
        _fused_out(x, residual, weight, eps, weight_offset, weight_in_float32, y, total)
    except RuntimeError as error:
        refuse(error)
