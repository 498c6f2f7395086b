"""The errors family: what a wrong call changes, and what was wrong before it already."""

from __future__ import annotations

import pytest
import torch

from trivet.catalogue.norm import rms_norm
from trivet.contracts import contiguous, implements
from trivet.errors import DomainError
from trivet_conformance import Status, from_functions, run

CHANGED = "a right call after it gives other results than before it"


def right(x, weight, *more):
    if weight.shape != x.shape[-1:]:
        msg = "weight is not as wide as x"
        raise DomainError(msg)
    return rms_norm.reference(x, weight, *more)


@implements("rms_norm@1", name="wrong", domain=[contiguous("x")], checks=False)
def wrong(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return right(x, weight, eps, weight_offset, weight_in_float32, variance_size) + 1


@implements("rms_norm@1", name="noisy", domain=[contiguous("x")], checks=False)
def noisy(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    y = right(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y + 1 + torch.rand(()).to(y.dtype)


_calls = []


@implements("rms_norm@1", name="noisy_then_wrong", domain=[contiguous("x")])
def noisy_then_wrong(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
):
    try:
        y = right(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    except (DomainError, TypeError, RuntimeError, AttributeError):
        _calls[:] = ["broken"]
        raise
    if _calls:
        _calls.clear()
        return torch.zeros_like(y)
    flip = torch.randint(0, 2, y.shape).to(torch.bool)  # within the budget, never the same bits
    return y.where(flip, y.nextafter(torch.zeros_like(y))) if y.dtype == torch.float32 else y


def changes(function):
    found = list(run(from_functions([function], "toy"), families=["errors"], quick=True))
    assert any(r.id.startswith("errors/rms_norm/") for r in found)
    return [r for r in found if r.status is Status.FAIL and CHANGED in r.finding.reason]


@pytest.mark.parametrize("function", [wrong, noisy])
def test_what_was_wrong_before_is_no_change(function):
    assert changes(function) == []


def test_what_a_wrong_call_breaks_is_a_change_although_bits_never_repeat():
    found = changes(noisy_then_wrong)
    assert found
    assert "worst at" in found[0].finding.reason
