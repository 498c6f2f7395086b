"""The yardstick of the self-test: what a plain comparison sees, and which legal variants differ."""

from __future__ import annotations

import pytest
import torch

from trivet.catalogue.activation import silu_and_mul
from trivet.contracts import dtype, implements
from trivet_conformance.selftest.mutants import VARIANTS
from trivet_conformance.selftest.naive import differs, points, seen
from trivet_conformance.subject.subject import from_functions

EXACT = {"first_of_the_largest", "token_by_token"}
"""Legal variants of operators whose results must be equal."""


@implements("silu_and_mul@1", name="same")
def same(x):
    return silu_and_mul.reference(x)


@implements("silu_and_mul@1", name="twice")
def twice(x):
    return 2 * silu_and_mul.reference(x)


@implements("silu_and_mul@1", name="raises")
def raises(x):
    raise OSError


@implements("silu_and_mul@1", name="half", domain=[dtype("x", "float16")])
def half(x):
    return silu_and_mul.reference(x) + 1


def test_it_sees_a_factor_and_what_raises_and_not_the_reference():
    assert seen(from_functions([same], "toy")) == ""
    assert "not close" in seen(from_functions([twice], "toy"))
    assert "OSError" in seen(from_functions([raises], "toy"))


def test_it_tries_float32_and_bfloat16_of_64_rows():
    (target,) = from_functions([same], "toy").targets
    assert [p.dtype_text for p in points(target)] == ["float32", "bfloat16"]
    assert {dict(p.dims)["tokens"] for p in points(target)} == {64}
    assert seen(from_functions([half], "toy")) == ""


def test_a_copy_of_the_reference_does_not_differ():
    assert not differs(from_functions([same], "toy"))
    assert differs(from_functions([twice], "toy"))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.killer], ids=lambda v: v.name)
def test_a_legal_variant_differs_in_bits(variant):
    assert differs(from_functions(variant.functions, "toy")) == (variant.name not in EXACT)


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    seen(from_functions([same], "toy"))
    assert torch.get_num_threads() == before
