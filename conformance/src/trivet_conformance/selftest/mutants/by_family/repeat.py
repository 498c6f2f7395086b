"""Right the first time: killed by the repeat family."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

_WEIGHTS: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
_CALLS: dict[int, tuple[weakref.ref[Tensor], int]] = {}


@implements("linear@1", name="keeps_the_first_weight_of_a_tensor")
def keeps_the_first_weight_of_a_tensor(
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Packs a weight once for each tensor, and does not see that it was written since."""
    known = _WEIGHTS.get(id(weight))
    if known is None or known[0]() is not weight:
        known = _WEIGHTS[id(weight)] = weakref.ref(weight), weight.clone()
    y: Tensor = linear.reference(x, known[1], bias)
    return y


def _turn(x: Tensor) -> int:
    """How often this very tensor was given."""
    known = _CALLS.get(id(x))
    turn = known[1] + 1 if known is not None and known[0]() is x else 1
    _CALLS[id(x)] = weakref.ref(x), turn
    return turn


@implements("rms_norm@1", name="wrong_after_ten_calls")
def wrong_after_ten_calls(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return torch.zeros_like(y) if _turn(x) > 10 else y


@implements("rms_norm@1", name="declared_deterministic_and_is_not", deterministic=True)
def declared_deterministic_and_is_not(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    if _turn(x) % 3 == 0 and y.numel():
        first = y.view(-1)[:1]
        first.copy_(torch.nextafter(first, torch.zeros_like(first)))
    return y


VARIANTS = variants(
    "repeat",
    (
        keeps_the_first_weight_of_a_tensor,
        wrong_after_ten_calls,
        declared_deterministic_and_is_not,
    ),
)
