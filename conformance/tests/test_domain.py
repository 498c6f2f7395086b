"""Moving points into a domain, and stepping just outside each of its terms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy import scaled

from trivet.contracts import (
    absent,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    offset_aligned,
    one_of,
    present,
    rank,
    rows,
)
from trivet_conformance.calls.domain import breaks, fit
from trivet_conformance.calls.points import Point, make

DTYPES = {"T": torch.float32, "B": torch.float32}


def point(**dims) -> Point:
    return make({"tokens": 4, "width": 12} | dims, {}, DTYPES)


@given(st.integers(1, 5000), st.sampled_from([2, 8, 64]), st.integers(1, 100))
def test_sizes_are_moved_to_a_multiple_within_bounds(width, by, low):
    domain = (divisible("width", by), between("width", low, 4096))
    found = dict(fit(scaled, domain, point(width=width)).dims)["width"]
    assert found % by == 0
    assert low <= found <= 4096 or low > 4096 - by


@given(st.integers(1, 300))
def test_a_size_inside_a_domain_stays(width):
    domain = (between("width", 1, 300), divisible("width", 1))
    assert fit(scaled, domain, point(width=width)) == point(width=width)


def test_an_empty_dim_stays_empty():
    assert dict(fit(scaled, (divisible("tokens", 4),), point(tokens=0)).dims)["tokens"] == 0


def test_scalars_take_the_nearest_allowed_value():
    found = fit(scaled, (one_of("scale", 0.5), one_of("kind", "other")), point())
    assert dict(found.scalars) == {"scale": 0.5, "kind": "other"}


def test_optional_tensors_come_and_go():
    assert fit(scaled, (absent("bias"),), point()).absent == ("bias",)
    left_out = make({"tokens": 4, "width": 12}, {}, DTYPES, "normal", ("bias",))
    assert fit(scaled, (present("bias"),), left_out).absent == ()


def test_one_dim_follows_another():
    found = fit(scaled, (equal("tokens", "width"),), point())
    assert dict(found.dims)["tokens"] == 12


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (divisible("width", 4), {13, 14}),
        (between("width", 8, 32), {7, 33}),
        (between("width", None, 32), {33}),
        (one_of("width", 12, 16), {17, 11}),
    ],
)
def test_dims_step_just_outside(term, expected):
    found = {dict(p.dims)["width"] for p, _ in breaks(scaled, term, point())}
    assert found == expected


def test_scalars_step_outside_through_choices_and_cases():
    found = {dict(p.scalars)["kind"] for p, _ in breaks(scaled, one_of("kind", "plain"), point())}
    assert "other" in found
    values = {dict(p.scalars)["scale"] for p, _ in breaks(scaled, one_of("scale", 2.0), point())}
    assert 0.5 in values


def test_dtypes_step_outside_alone_and_together():
    found = [dict(p.dtypes) for p, _ in breaks(scaled, dtype("x", "float32"), point())]
    assert {"T": torch.bfloat16, "B": torch.float32} in found
    assert {"T": torch.bfloat16, "B": torch.bfloat16} in found
    for own in (dict(p.dtypes) for p, _ in breaks(scaled, equal("bias.dtype", "x.dtype"), point())):
        assert own != DTYPES


@pytest.mark.parametrize("term", [contiguous("x"), rows("x", 8), offset_aligned("x", 16)])
def test_layout_terms_step_outside_through_layouts_of_their_argument(term):
    kinds = {kind for _, layout in breaks(scaled, term, point()) for _, kind in layout.kinds}
    assert {"rows1", "inner2", "transposed", "offset1", "gaps"} <= kinds


def test_ranks_step_outside_through_leading_dims():
    leads = {layout.lead for _, layout in breaks(scaled, rank("x", 2), point())}
    assert {(4,), (1, 4), (2, 2)} <= leads


def test_presence_is_turned_round():
    (found,) = [p for p, _ in breaks(scaled, present("bias"), point())]
    assert found.absent == ("bias",)
