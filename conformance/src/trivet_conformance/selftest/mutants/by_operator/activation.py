"""Activations: an approximation or a half in another's place, and a legal way around erf."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trivet.catalogue.activation import gelu
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import Variant, variants


def _up(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


@implements("gelu@1", name="tanh_for_erf")
def tanh_for_erf(x: Tensor, approximate: str = "none") -> Tensor:
    """The approximation, whatever is asked for."""
    del approximate
    return torch.as_tensor(gelu.reference(x, "tanh"))


@implements("gelu_and_mul@1", name="gelu_of_the_second_half")
def gelu_of_the_second_half(x: Tensor, approximate: str = "none") -> Tensor:  # noqa: D103
    value, gate = _up(x).chunk(2, -1)
    return (functional.gelu(gate, approximate=approximate) * value).to(x.dtype)


@implements("gelu@1", name="exponential_of_a_logarithm")
def exponential_of_a_logarithm(x: Tensor, approximate: str = "none") -> Tensor:
    """Right in the tail, too, where ``1 + erf`` cancels."""
    if approximate != "none":
        return torch.as_tensor(gelu.reference(x, approximate))
    wide = _up(x)
    below: Tensor = torch.special.log_ndtr(wide)
    return (wide * below.exp()).to(x.dtype)


VARIANTS: tuple[Variant, ...] = (
    *variants("value", (tanh_for_erf, gelu_of_the_second_half)),
    *variants("", (exponential_of_a_logarithm,)),
)
