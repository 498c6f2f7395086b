"""Right numbers under a claim that is none: killed by the dispatch family."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet.contracts.terms import Decision, View
from trivet.contracts.terms.layout import Contiguous
from trivet_conformance.selftest.mutants.variant import variants

_asked: list[int] = [0]


@dataclass(frozen=True)
class Allocating(Contiguous):
    """Makes a tensor to decide."""

    def decide(self, view: View) -> Decision:  # noqa: D102
        torch.empty(1)
        return super().decide(view)


@dataclass(frozen=True)
class Counting(Contiguous):
    """Decides otherwise every third time."""

    def decide(self, view: View) -> Decision:  # noqa: D102
        _asked[0] += 1
        decision = super().decide(view)
        return decision if _asked[0] % 3 else "not this time"


@implements("silu_and_mul@1", name="allocates_while_it_decides", domain=[Allocating("x")])
def allocates_while_it_decides(x: Tensor) -> Tensor:  # noqa: D103
    if not x.is_contiguous():
        from trivet.errors import DomainError

        msg = "x is not contiguous"
        raise DomainError(msg)
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("silu_and_mul@1", name="decides_by_a_counter", domain=[Counting("x")])
def decides_by_a_counter(x: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("rms_norm@1", name="claims_and_raises")
def claims_and_raises(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    if x.dtype == torch.float16:
        msg = "float16 is not supported"
        raise NotImplementedError(msg)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("silu_and_mul@1", name="right_for_one_rank_only")
def right_for_one_rank_only(x: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = silu_and_mul.reference(x)
    return y if x.dim() == 2 else torch.zeros_like(y)


VARIANTS = variants(
    "dispatch",
    (
        allocates_while_it_decides,
        decides_by_a_counter,
        claims_and_raises,
        right_for_one_rank_only,
    ),
)
