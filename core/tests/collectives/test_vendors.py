from __future__ import annotations

import pytest
import torch

import trivet
import trivet.collectives
from trivet.contracts import between
from trivet.contracts.collectives import provides
from trivet.errors import DeclarationError, PluginBroken, UnknownName

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 2])
def test_a_vendor_may_bring_one_operation(world, size):
    world("vendors.py", "vendor_with_one_operation", size)


def test_order_lists_and_determinism_choose(world):
    world("vendors.py", "order_lists", 3)


def test_a_lock_holds_a_group_to_its_choices(world):
    world("vendors.py", "locked", 2)


def test_the_environment_forbids(world):
    environ = {"TRIVET_FORBID": "comm.all_reduce=acme/store"}
    world("vendors.py", "forbidden_by_the_environment", 1, environ=environ)


def test_ranks_that_would_choose_differently_say_the_same(world):
    bodies = "vendor_on_one_rank vendor_of_another_version other_order_lists"
    said = world("vendors.py", bodies, 2)
    assert said[0] == said[1]
    assert "rank 0 has acme/store" in said[0]


def test_a_vendor_that_fails_is_named(world):
    said = world("vendors.py", "vendor_that_cannot_open vendor_that_raises", 2)
    assert said[0] == said[1] != ""


def test_order_lists_of_groups_are_none_of_the_operators_business(monkeypatch):
    monkeypatch.setenv("TRIVET_PROVIDERS", "comm.all_reduce=torch/gloo;comm.nothing=a/b")
    dev = trivet.device("reference")
    dev.bind("silu_and_mul")
    with pytest.raises(UnknownName, match=r"names no operation of groups: 'comm\.nothing'"):
        dev.collectives.imagine(2)


def test_what_a_plugin_returns_may_be_a_function_and_has_to_be_classes():
    class Nothing:
        pass

    assert trivet.collectives.open(CPU, {"a": lambda: [Nothing]}).imagine(2)
    with pytest.raises(PluginBroken, match="int"):
        trivet.collectives.open(CPU, {"a": [Nothing, 3]})


def test_marks_that_cannot_be_right_are_refused_where_they_stand():
    def sized(out, inp, out_splits, in_splits):
        pass

    with pytest.raises(DeclarationError, match="no such operation"):
        provides("all_redouce")
    with pytest.raises(DeclarationError, match="no level 'bits'"):
        provides("all_reduce", determinism=["bits"])
    with pytest.raises(DeclarationError, match="asks for no fact"):
        provides("all_reduce", domain=[between("free_memory", 1, None)])
    with pytest.raises(DeclarationError, match="asks for no fact"):
        provides("all_to_all_v", domain=[between("nbytes", 1, None)])
    with pytest.raises(DeclarationError, match=r"its arguments are|takes \("):
        provides("all_gather")(sized)
