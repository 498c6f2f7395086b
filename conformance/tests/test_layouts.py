"""Views of guarded memory: values stay, strides differ, and every stray write is seen."""

from __future__ import annotations

import pytest
import torch
from toy import scaled

from trivet.catalogue import operators
from trivet_conformance.calls.calling import lay_out
from trivet_conformance.calls.layouts import KINDS, Layout, leads, packable, place, strides_of
from trivet_conformance.calls.points import arguments, make

CPU = torch.device("cpu")
DTYPES = {"T": torch.float32, "B": torch.float32}
POINT = make({"tokens": 4, "width": 12}, {}, DTYPES)


@pytest.mark.parametrize("kind", [*KINDS, "gaps"])
@pytest.mark.parametrize("lead", [None, (2, 2)])
def test_a_view_has_the_values_it_was_given(kind, lead):
    given = arguments(scaled, POINT, 0)
    if kind == "expanded":
        given["x"] = given["x"][:1].expand(4, 12).clone()
    if kind == "expanded" and lead:
        return  # only the first of two leading dims is repeated then
    placed = place(scaled, given, Layout(lead=lead, kinds=(("x", kind),)), CPU)
    if kind == "gaps" and lead is None:
        assert placed is None
        return
    assert torch.equal(placed.arguments["x"].reshape(4, 12), given["x"])
    assert placed.arguments["x"].data_ptr() % 64 == (4 if kind == "offset1" else 0)


def test_strides_are_what_the_kinds_say():
    assert strides_of((4, 12), 1, "") == [12, 1]
    assert strides_of((4, 12), 1, "rows1") == [13, 1]
    assert strides_of((2, 2, 12), 1, "rows64") == [152, 76, 1]
    assert strides_of((4, 12), 1, "inner2") == [24, 2]
    assert strides_of((4, 12), 1, "transposed") == [1, 4]
    assert strides_of((4, 12), 1, "expanded") == [0, 1]
    assert strides_of((2, 2, 12), 1, "gaps") == [36, 12, 1]
    assert strides_of((12,), 1, "rows1") is None
    assert strides_of((4, 12), 1, "gaps") is None
    with pytest.raises(ValueError, match="no layout"):
        strides_of((4,), 1, "sideways")


def test_a_write_around_a_view_is_seen_and_a_write_in_it_is_not():
    placed = place(scaled, arguments(scaled, POINT, 0), Layout(kinds=(("x", "rows64"),)), CPU)
    placed.remember()
    x = placed.arguments["x"]
    x.zero_()
    assert placed.disturbed() == []
    x.as_strided((1,), (1,), x.storage_offset() + 12).fill_(0)
    assert placed.disturbed() == ["x"]


def test_packed_arguments_lie_side_by_side_in_one_base():
    op = operators()["rotary_embedding"]
    dims = {"tokens": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "rotary_half": 4}
    given = arguments(op, make(dims, {}, {"T": torch.float32}), 0)
    names = packable(op, given)
    assert names == ("q", "k")
    placed = place(op, given, Layout(packed=names), CPU)
    q, k = placed.arguments["q"], placed.arguments["k"]
    assert q.stride(0) == k.stride(0) == 4 * 8 + 2 * 8
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert torch.equal(q, given["q"])
    assert torch.equal(k, given["k"])
    assert list(placed.arguments) == list(given)


def test_leading_dims_keep_their_product():
    assert set(leads(scaled, POINT)) == {(4,), (1, 4), (1, 4, 1), (2, 2)}
    assert () in leads(scaled, make({"tokens": 1, "width": 12}, {}, DTYPES))


def test_results_of_the_out_form_begin_as_numbers_that_no_kernel_leaves():
    placed = lay_out(scaled, "out", arguments(scaled, POINT, 0), Layout(), CPU)
    assert bool(placed.arguments["out"].isnan().all())


def test_inputs_depend_on_seed_point_and_draw_alone():
    a, b = (arguments(scaled, POINT, 3, 1)["x"] for _ in range(2))
    assert torch.equal(a, b)
    for seed, draw in ((4, 1), (3, 2)):
        assert not torch.equal(a, arguments(scaled, POINT, seed, draw)["x"])
