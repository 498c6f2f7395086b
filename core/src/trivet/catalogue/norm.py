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
from trivet.errors import DomainError

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
        {"variance_size": 1},  # fits every size, also those that the kit adds
    ),
)


def prefix(t: Tensor, variance_size: int) -> Tensor:
    """The elements of each row that its mean square is taken over; 0 stands for all.

    Raises:
        DomainError: a row has no such prefix.
    """
    if not 0 <= variance_size <= t.shape[-1]:
        msg = f"variance_size={variance_size} in rows of {t.shape[-1]} elements"
        raise DomainError(msg, fix="pass 0 for the whole row, or at most its length")
    return t[..., :variance_size] if variance_size else t


def normalised(
    x: Tensor,
    weight: Tensor,
    eps: float,
    offset: float,
    in_float32: bool,
    variance_size: int = 0,
) -> Tensor:
    """``x / rms(x) * (weight + offset)`` with the rounding that the operators declare."""
    f = up(x)
    f = f * torch.rsqrt(prefix(f, variance_size).pow(2).mean(-1, keepdim=True) + eps)
    if in_float32:
        return (f * (up(weight) + offset)).to(x.dtype)
    return (f.to(x.dtype) * (weight + offset)).to(x.dtype)


def by_length(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,  # noqa: ARG001  # rounding order has no meaning in fp64
    variance_size: int = 0,
) -> Tensor:
    """The oracle: divides by the length of the row, which is the root of its sum of squares."""
    n = variance_size or x.shape[-1]
    length = torch.linalg.vector_norm(x.narrow(-1, 0, n), dim=-1, keepdim=True)
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
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    total = residual - (-x)
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    return by_length(total, weight, *scalars), total


def _composed(parts: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]) -> list[Tensor]:
    """A sum, rounded, and its norm."""
    x, residual = given["x"], given["residual"]
    total = (up(x) + up(residual)).to(residual.dtype)
    names = ("eps", "weight_offset", "weight_in_float32", "variance_size")
    scalars = [given[n] for n in names]
    return [parts["rms_norm"](total, given["weight"], *scalars), total]


@operator(
    shapes={"x": "*tokens hidden", "weight": "hidden"},
    dtypes={"weight": "W"},
    returns=[("*tokens hidden", "x")],
    inplace={"x": 0},
    cases=_CASES,
    oracle=by_length,
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Divides each row by its root mean square and scales it: ``x / rms(x) * (weight + offset)``.

    Source: arXiv:1910.07467. With ``weight_in_float32`` the product is taken in float32 and
    rounded once (llama.cpp, Gemma); without, the normalised row is rounded to the dtype of ``x``
    first (Llama in transformers). ``weight_offset`` is 1.0 for Gemma. The mean square is taken
    over the first ``variance_size`` elements of a row, 0 being all; the whole row is scaled.
    """
    return normalised(x, weight, eps, weight_offset, weight_in_float32, variance_size)


@operator(
    shapes={"x": "*tokens hidden", "residual": "*tokens hidden", "weight": "hidden"},
    dtypes={"weight": "W"},
    returns=[("*tokens hidden", "x"), ("*tokens hidden", "residual")],
    inplace={"x": 0, "residual": 1},
    cases=replace(_CASES, composed=_composed),
    oracle=_fused_oracle,
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
    """Adds a residual and normalises: ``s = x + residual``, result ``(rms_norm(s), s)``.

    ``x`` and ``residual`` have one dtype, to which the sum is rounded before it is normalised, as
    two separate operators would do. In place, ``x`` becomes the
    normalised rows and ``residual`` the sum. ``variance_size`` is that of ``rms_norm``.
    """
    total = (up(x) + up(residual)).to(residual.dtype)
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    return normalised(total, weight, *scalars).to(x.dtype), total
