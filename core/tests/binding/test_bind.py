from __future__ import annotations

import logging
import threading

import pytest
import torch

import stand_ins
from stand_ins import (
    ALL,
    OPS,
    make_device,
    norm_big,
    norm_into,
    norm_small,
    norm_vec,
    sample_top,
    silu_into,
    verified,
)
from trivet import prefer
from trivet.binding.workspace import workspace
from trivet.errors import UnknownName
from trivet.selection.derive import derive
from trivet_conformance.calls.proving import proving_facts

PROOFS = {
    "norm_vec": {
        "dtype": "bfloat16",
        "weight.dtype": "bfloat16",
        "hidden": 64,
        "contiguous": True,
        "weight_offset": 0.0,
        "weight_in_float32": True,
    },
    "norm_small": {"tokens": range(1, 9)},
    "norm_big": {"tokens": 100},
    "norm_over": {"rank": 2},
    "norm_into": {"contiguous": ["x"]},
    "fused_over": {"contiguous": ["x", "residual"]},
    "silu_into": {"inter": 64},
    "rotary_over": {"q.rows": 1, "k": None},
    "rotary_into": {"heads": 3},
    "scatter": {"layout": "NHD"},
    "attend_one": {"max_query_len": 1, "contiguous": True, "heads": 4, "head_dim": 8},
    "linear_turned": {"contiguous": True},
    "linear_halves": {"tokens": 4, "in_features": 8},
    "sample_top": {"vocab": 100},
}


def target_of(function):
    found = verified(function)
    suffix = {"functional": "", "inplace": "_", "out": "_out"}[found.form]
    return found.operator.name + ("" if found.operator.inplace_only else suffix)


@pytest.mark.parametrize("name", PROOFS)
def test_where_facts_prove_the_domain_the_bind_is_the_vendors_function(name):
    function = getattr(stand_ins, name)
    dev = make_device(function)
    facts = PROOFS[name]
    if name == "norm_into":
        rows = dev.explain("rms_norm_out", facts)
        assert rows[0].reason == "contiguous(out)", "these facts do not speak of out"
        assert dev.explain("rms_norm", facts)[0].verdict == "yes"
        return
    assert dev.bind(target_of(function), facts) is function
    plan = dev.plan({"site": (target_of(function), facts)})
    assert plan.site is function
    assert plan.at().site is function


def test_every_stand_in_is_proved_by_some_facts():
    assert {f.__name__ for f in ALL} == set(PROOFS)


def test_equal_binds_are_one_object():
    dev, other = make_device(*ALL), make_device(*ALL)
    facts = {"hidden": 64, "dtype": torch.float32}
    for name in OPS:
        one = dev.bind(name)
        assert dev.bind(name, {}) is one
        assert other.bind(name) is one
        assert dev.ops.__getattr__(name) is one
    guarded = dev.bind("rms_norm", facts)
    assert hasattr(guarded, "__trivet_source__")
    assert other.bind("rms_norm", {"dtype": "float32", "hidden": 64}) is guarded
    assert dev.bind("rms_norm", {"hidden": 65, "dtype": "float32"}) is not guarded
    assert dev.bind("rms_norm", facts, prefer={"rms_norm": "acme/big"}) is not guarded
    assert dev.bind("rms_norm_", facts) is dev.bind("rms_norm_", facts)
    strict = make_device(norm_vec, norm_big, strict=True)
    assert strict.bind("rms_norm") is strict.bind("rms_norm")
    assert strict.bind("rms_norm") is not make_device(norm_vec, norm_big).bind("rms_norm")


def test_a_preference_and_back_gives_the_same_object():
    dev = make_device(norm_small, norm_big)
    first = dev.bind("rms_norm")
    with prefer(rms_norm="acme/big"):
        swapped = dev.bind("rms_norm")
    assert swapped is not first
    assert dev.bind("rms_norm") is first


def test_ops_follow_the_context_and_keep_what_they_bound():
    dev = make_device(norm_small, norm_big)
    outside = dev.ops.rms_norm
    with prefer(rms_norm="reference"):
        assert dev.ops.rms_norm is OPS["rms_norm"].reference
        assert dev.ops is dev.ops
    assert dev.ops.rms_norm is outside
    assert "rms_norm" in dir(dev.ops)
    assert dev.ops.rms_norm_ is not outside
    with pytest.raises(UnknownName, match="no operator 'rms_morm'"):
        dev.ops.rms_morm  # noqa: B018  # the look-up is the test
    assert not hasattr(dev.ops, "_repr_html_"), "notebooks look for such names"


def test_a_derived_form_is_the_interned_one():
    dev = make_device(silu_into)
    op = OPS["silu_and_mul"]
    derived = derive(op, "out", "functional", silu_into).function
    assert dev.bind("silu_and_mul", {"inter": 64}) is derived


def test_first_use_is_logged_when_bound(caplog):
    with caplog.at_level(logging.INFO, "trivet.bind"):
        make_device(norm_small).bind("rms_norm", {"tokens": 5})
    assert [r.getMessage() for r in caplog.records] == ["rms_norm -> acme/small"]


@pytest.mark.parametrize("what", ["bind", "derive", "plan"])
def test_concurrent_binds_and_plans_are_one_object(what):
    op = OPS["rms_norm"]
    start, found = threading.Barrier(8), []
    facts = {"hidden": 4096 + ["bind", "derive", "plan"].index(what)}

    def fresh(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0): ...

    def work():
        dev = make_device(norm_small, norm_big, sample_top)
        start.wait()
        match what:
            case "bind":
                found.append(dev.bind("rms_norm", facts))
            case "derive":
                found.append(derive(op, "inplace", "functional", fresh).function)
            case _:
                found.append(dev.plan({"norm": ("rms_norm", facts)}))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(f) for f in found}) == 1


def test_workspace_lies_where_the_tensor_lies():
    made = workspace(torch.zeros(2, device="meta"), 100)
    assert (made.shape, made.dtype, made.device.type) == ((100,), torch.uint8, "meta")


def test_a_device_says_what_it_is():
    dev = make_device(norm_small)
    assert (dev.plugin, dev.reason) == ("acme", "a test asked for it")
    assert repr(dev) == "<trivet device acme:0 of plugin 'acme'>"
    assert dev.torch == torch.device("cpu")
    assert dev.operators is OPS
    assert dev.providers()["rms_norm"] == ["acme/small"]
    assert dev.counts() == {}


def test_a_planner_promises_the_layout_of_out():
    dev = make_device(norm_into)
    implementation = dev.offer.implementations[0]
    facts = proving_facts(implementation)
    assert facts["out.contiguous"] is True
    assert dev.bind(target_of(norm_into), facts) is norm_into
