"""linear and linear_packed: the vendor's library through torch, from the weight as it came.

float32 is multiplied as float32: torch rounds to a shorter type only where
``torch.set_float32_matmul_precision`` or its flags ask for that, and such a mode is a fact of every
plan. Products are not batch invariant: the library chooses a kernel by the
number of rows.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear as _linear

from trivet.contracts import Term, dtype, equal, implements
from trivet.errors import DomainError

PROMISES: Final = frozenset({"graph_safe"})
"""The libraries give equal bits for equal calls on one stream at best, so that it is no promise."""

_FLOATS: Final = ("bfloat16", "float16", "float32", "float64")
_BIAS: Final[Term] = equal("bias.dtype", "x.dtype")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):  # it must not change an operator's meaning
        with torch.autocast(x.device.type, enabled=False):
            return _linear(x, weight, bias)
    return _linear(x, weight, bias)


@implements(
    "linear@1",
    name="torch",
    domain=[dtype("x", *_FLOATS), equal("weight.dtype", "x.dtype"), _BIAS],
    graph_safe=True,
    checks=False,  # what torch does not take is torch's own error
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies with torch."""
    return _product(x, weight, bias)


@implements(
    "linear_packed@1",
    name="torch",
    domain=[dtype("x", *_FLOATS), _BIAS],
    graph_safe=True,
    checks=False,
)
def linear_packed(
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    """Multiplies with torch; the pack is the weight as it came.

    Raises:
        DomainError: the pack is for another width or dtype.
    """
    weight = packed[0]
    if weight.dtype is not x.dtype or weight.shape[0] != out_features:
        what = f"x is {x.dtype}, out_features {out_features}"
        msg = f"linear_packed: {what}; the pack is {weight.dtype} {list(weight.shape)}"
        raise DomainError(msg, fix="prepare the weight at this site: plan.prepare(site, weight)")
    return _product(x, weight, bias)
