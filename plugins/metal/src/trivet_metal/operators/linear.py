"""linear and linear_packed: ``torch.mm``, behind guards for faults of MPS that are public.

Such a fault gives wrong numbers without a word, so that nothing of it is tried:

- products over 32,767 elements and more came out wrong on M1 and M2 (pytorch issue 195163): here a
  longer one is made in pieces, which are added in float32;
- expanded inputs, of stride 0, were misread from macOS 15 on (180201): they are copied first;
- a result that is a slice of another tensor was left as it was (104832): results are fresh.

No fault of this kind is known of ``torch.mm`` on two dense matrices.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from trivet.contracts import Term, dtype, equal, implements
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS

PIECE: Final = 16_384
"""Elements that one product goes over at most: half of where they came out wrong."""

_BIAS: Final[Term] = equal("bias.dtype", "x.dtype")


def dense(t: Tensor) -> Tensor:
    """The matrix itself, or a copy where its elements lie apart, or on top of each other."""
    rows, columns = t.stride()
    plain = columns == 1 and (rows >= t.shape[1] or t.shape[0] == 1)
    return t if plain else t.contiguous()


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in the dtype of ``x``, whatever autocast says."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return _product(x, weight, bias)
    return _product(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    length, width = x.shape[-1], weight.shape[0]
    left, right = dense(x.reshape(x.numel() // length if length else 0, length)), dense(weight)
    if not length:
        left = x.new_zeros((x.shape[:-1].numel(), 0))
    if length <= PIECE:
        made = torch.mm(left, right.t())
        if bias is not None:
            made = made.float().add_(bias).to(x.dtype)
    else:
        total = x.new_zeros((left.shape[0], width), dtype=torch.float32)
        for i in range(0, length, PIECE):
            piece = slice(i, min(i + PIECE, length))
            total += torch.mm(left[:, piece].float(), right[:, piece].float().t())
        made = (total if bias is None else total.add_(bias)).to(x.dtype)
    return made.reshape(*x.shape[:-1], width)


@implements(
    "linear@1",
    name="torch",
    domain=[dtype("x", *FLOATS), equal("weight.dtype", "x.dtype"), _BIAS],
    checks=False,  # what torch does not take is torch's own error
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies with torch."""
    return product(x, weight, bias)


@implements("linear_packed@1", name="torch", domain=[dtype("x", *FLOATS), _BIAS], checks=False)
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
    return product(x, weight, bias)
