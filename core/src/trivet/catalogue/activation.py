"""Activations, alone and gated (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from trivet.catalogue._choices import declared
from trivet.catalogue._numerics import up
from trivet.contracts import Cases, operator

APPROXIMATIONS = ("none", "tanh")
"""How gelu's normal distribution function is computed: with erf, or with a tanh."""

_GATES = (
    {"tokens": 1, "inter": 64},
    {"tokens": 7, "inter": 1536},
    {"tokens": 65, "inter": 257},
    {"tokens": 0, "inter": 8},
)
_SIZES = (
    {"tokens": 1, "hidden": 64},
    {"tokens": 7, "hidden": 576},
    {"tokens": 65, "hidden": 257},
    {"tokens": 3, "hidden": 1},
    {"tokens": 0, "hidden": 8},
)
_SCALARS: tuple[dict[str, str], ...] = ({}, {"approximate": "tanh"})


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]


def _silu_oracle(x: Tensor) -> Tensor:
    return x * torch.exp(-torch.logaddexp(torch.zeros_like(x), -x))


def _silu_and_mul_oracle(x: Tensor) -> Tensor:
    gate, value = _halves(x)
    return _silu_oracle(gate) * value


def _gelu_oracle(x: Tensor, approximate: str = "none") -> Tensor:
    """Through the logarithms of what multiplies ``x``."""
    if approximate == "none":
        below: Tensor = torch.special.log_ndtr(x)
        return x * torch.exp(below)
    argument = math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)
    return x * torch.exp(-torch.logaddexp(torch.zeros_like(x), -argument))


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """As torch does it; in float64, which judges others, without one plus erf or tanh.

    Both cancel in the tail, so that a row of one element would have no right digit.
    """
    if x.dtype is not torch.float64:
        return functional.gelu(x, approximate=approximate)
    if approximate == "none":
        return x * (torch.erfc(x * -math.sqrt(0.5)) / 2)
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def _gelu_and_mul_oracle(x: Tensor, approximate: str = "none") -> Tensor:
    gate, value = _halves(x)
    return _gelu_oracle(gate, approximate) * value


@operator(
    shapes={"x": "*tokens 2*inter"},
    returns=[("*tokens inter", "x")],
    cases=Cases(sizes=_GATES),
    oracle=_silu_and_mul_oracle,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Multiplies the SiLU of the first half of each row with the second half (SwiGLU's gate).

    Source: Shazeer 2020, arXiv:2002.05202. ``x`` is ``[*tokens, 2 * inter]``, gate first.
    """
    gate, value = up(x).chunk(2, -1)
    return (functional.silu(gate) * value).to(x.dtype)


@operator(
    shapes={"x": "*tokens 2*inter"},
    returns=[("*tokens inter", "x")],
    choices={"approximate": APPROXIMATIONS},
    cases=Cases(sizes=_GATES, scalars=_SCALARS),
    oracle=_gelu_and_mul_oracle,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Multiplies the GELU of the first half of each row with the second half (GEGLU's gate).

    Source: Shazeer 2020, arXiv:2002.05202. ``x`` is ``[*tokens, 2 * inter]``, gate first;
    ``approximate`` is that of ``gelu``.
    """
    declared("approximate", approximate, APPROXIMATIONS)
    gate, value = up(x).chunk(2, -1)
    return (_gelu(gate, approximate) * value).to(x.dtype)


@operator(
    shapes={"x": "*tokens hidden"},
    returns=[("*tokens hidden", "x")],
    inplace={"x": 0},
    cases=Cases(sizes=_SIZES),
    oracle=_silu_oracle,
)
def silu(x: Tensor) -> Tensor:
    """Computes ``x * sigmoid(x)`` of each element.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; Ramachandran et al. 2017,
    arXiv:1710.05941 (swish with beta 1).
    """
    return functional.silu(up(x)).to(x.dtype)


@operator(
    shapes={"x": "*tokens hidden"},
    returns=[("*tokens hidden", "x")],
    inplace={"x": 0},
    choices={"approximate": APPROXIMATIONS},
    cases=Cases(sizes=_SIZES, scalars=_SCALARS),
    oracle=_gelu_oracle,
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Multiplies each element with the normal distribution function of it.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415. ``approximate="none"`` is
    ``x / 2 * (1 + erf(x / sqrt(2)))``, ``"tanh"`` is
    ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.
    """
    declared("approximate", approximate, APPROXIMATIONS)
    return _gelu(up(x), approximate).to(x.dtype)
