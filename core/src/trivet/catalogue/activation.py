"""Gated activations."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue._numerics import up
from trivet.contracts import Cases, operator


def _silu_oracle(x: Tensor) -> Tensor:
    gate, value = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    sigmoid = torch.exp(-torch.logaddexp(torch.zeros_like(gate), -gate))
    return gate * sigmoid * value


@operator(
    shapes={"x": "*tokens 2*inter"},
    returns=[("*tokens inter", "x")],
    cases=Cases(
        sizes=(
            {"tokens": 1, "inter": 64},
            {"tokens": 7, "inter": 1536},
            {"tokens": 65, "inter": 257},
            {"tokens": 0, "inter": 8},
        ),
    ),
    oracle=_silu_oracle,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Multiplies the SiLU of the first half of each row with the second half (SwiGLU's gate).

    Source: Shazeer 2020, arXiv:2002.05202. ``x`` is ``[*tokens, 2 * inter]``, gate first.
    """
    gate, value = up(x).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * value).to(x.dtype)
