"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._numerics import up
from trivet.contracts import Cases, operator

_CASES = Cases(
    sizes=(
        {"tokens": 1, "hidden": 128},
        {"tokens": 7, "hidden": 576},
        {"tokens": 130, "hidden": 514},
        {"tokens": 3, "hidden": 1},
        {"tokens": 0, "hidden": 64},
    ),
    scalars=(
        {},
        {"weight_in_float32": True},
        {"eps": 1e-5, "weight_offset": 1.0, "weight_in_float32": True},
        {"weight_offset": 1.0},
    ),
)


def _norm(x: Tensor, weight: Tensor, eps: float, offset: float, in_float32: bool) -> Tensor:
    f = up(x)
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
    if in_float32:
        return (f * (up(weight) + offset)).to(x.dtype)
    return (f.to(x.dtype) * (weight + offset)).to(x.dtype)


def _rms_norm_oracle(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,  # noqa: ARG001  # rounding order has no meaning in fp64
) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    n = x.shape[-1]
    return (
        x
        * math.sqrt(n)
        / torch.hypot(length, torch.full_like(length, math.sqrt(eps * n)))
        * (weight + weight_offset)
    )


def _fused_oracle(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> tuple[Tensor, Tensor]:
    total = residual - (-x)
    return _rms_norm_oracle(total, weight, eps, weight_offset, weight_in_float32), total


def _composed(parts: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]) -> list[Tensor]:
    """A sum, rounded, and its norm."""
    x, residual = given["x"], given["residual"]
    total = (up(x) + up(residual)).to(residual.dtype)
    scalars = [given[n] for n in ("eps", "weight_offset", "weight_in_float32")]
    return [parts["rms_norm"](total, given["weight"], *scalars), total]


@operator(
    shapes={"x": "*tokens hidden", "weight": "hidden"},
    dtypes={"weight": "W"},
    returns=[("*tokens hidden", "x")],
    inplace={"x": 0},
    cases=_CASES,
    oracle=_rms_norm_oracle,
    properties=("deterministic",),
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> Tensor:
    """Divides each row by its root mean square and scales it: ``x / rms(x) * (weight + offset)``.

    Source: arXiv:1910.07467. With ``weight_in_float32`` the product is taken in float32 and
    rounded once (llama.cpp, Gemma); without, the normalised row is rounded to the dtype of ``x``
    first (Llama in transformers). ``weight_offset`` is 1.0 for Gemma.
    """
    return _norm(x, weight, eps, weight_offset, weight_in_float32)


@operator(
    shapes={"x": "*tokens hidden", "residual": "*tokens hidden", "weight": "hidden"},
    dtypes={"weight": "W"},
    returns=[("*tokens hidden", "x"), ("*tokens hidden", "residual")],
    inplace={"x": 0, "residual": 1},
    cases=replace(_CASES, composed=_composed),
    oracle=_fused_oracle,
    properties=("deterministic",),
)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> tuple[Tensor, Tensor]:
    """Adds a residual and normalises: ``s = x + residual``, result ``(rms_norm(s), s)``.

    ``x`` and ``residual`` have one dtype, to which the sum is rounded before it is normalised, as
    two separate operators would do. In place, ``x`` becomes the
    normalised rows and ``residual`` the sum.
    """
    total = (up(x) + up(residual)).to(residual.dtype)
    return _norm(total, weight, eps, weight_offset, weight_in_float32).to(x.dtype), total
