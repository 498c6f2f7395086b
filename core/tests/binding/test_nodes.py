"""Plans of mode ``compiled``: vendor functions that a tracer keeps as nodes."""

from __future__ import annotations

import pytest
import torch

from stand_ins import make_device
from trivet.contracts import dtype, implements
from trivet.errors import GradUnsupported

ACT = {"dtype": "float32", "contiguous": True}
NORM = {"hidden": 8, "weight.dtype": "float32", **ACT}


@implements("rms_norm@1", name="opaque", domain=[dtype("x", "float32")])
def rms_norm(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
):  # fmt: skip
    assert x.data_ptr() + weight.data_ptr()  # what a tracer cannot follow
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


@implements("fused_add_rms_norm_@1", name="opaque")
def fused_add_rms_norm_(
    x, residual, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
):
    assert x.data_ptr()
    residual += x
    x.copy_(rms_norm(residual, weight, eps))


@pytest.fixture
def plan():
    dev = make_device(rms_norm, fused_add_rms_norm_)
    sites = {
        "norm": ("rms_norm", NORM),
        "add": ("fused_add_rms_norm_", NORM),
        "both": ("fused_add_rms_norm", NORM),
        "glu": ("silu_and_mul", ACT),
    }
    return dev.plan(sites, mode="compiled")


def nodes(plan, *arguments):
    """What a function over the plan becomes: the targets of its calls, and the results."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    def model(x, residual, weight):
        y = plan.norm(x * 2, weight)
        plan.add(y, residual, weight)
        return plan.glu(y), residual

    torch._dynamo.reset()
    found = torch.compile(model, backend=keep, fullgraph=True)(*arguments)
    calls = [str(n.target) for g in graphs for n in g.graph.nodes if n.op == "call_function"]
    return calls, found, model


def test_a_tracer_keeps_vendor_functions_and_follows_the_reference(plan):
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    calls, (y, total), model = nodes(plan, x, residual.clone(), weight)
    kept = [name for name in calls if name.startswith("trivet_acme.")]
    assert [name.rpartition("__")[0] for name in kept] == [
        "trivet_acme.rms_norm",
        "trivet_acme.fused_add_rms_norm_",
    ]
    assert any("silu" in name for name in calls)
    expected, sums = model(x, residual.clone(), weight)
    torch.testing.assert_close((y, total), (expected, sums))


def test_a_node_computes_what_the_function_does_and_says_its_shapes(plan):
    x, residual, weight = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.rand(8)
    torch.testing.assert_close(plan.norm(x, weight, eps=0.5), rms_norm(x, weight, 0.5))
    y, total = plan.both(x, residual, weight)
    torch.testing.assert_close((y, total), (rms_norm(x + residual, weight), x + residual))
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (x, residual, weight)]
        first, second = plan.both(*fakes)
        assert first.shape == second.shape == (2, 3, 8)
        assert plan.add(*fakes) is None


def test_a_second_plan_holds_the_same_nodes_and_an_eager_one_the_functions(plan):
    dev = make_device(rms_norm, fused_add_rms_norm_)
    sites = {"again": ("rms_norm", NORM)}
    assert dev.plan(sites, mode="compiled").again is plan.norm
    assert dev.plan(sites).again is rms_norm


def test_what_requires_grad_is_refused(plan):
    x, weight = torch.randn(2, 8, requires_grad=True), torch.ones(8)
    with pytest.raises(GradUnsupported, match="acme/opaque is forward only"):
        plan.norm(x, weight)
    with torch.no_grad():
        assert plan.norm(x, weight).shape == (2, 8)


def test_absent_and_listed_tensors_pass_through_a_node():
    @implements("rotary_embedding@1", name="listed")
    def rotary(q, k, cos, sin, pairing="neox"):
        assert q.data_ptr()
        return [q.clone()] if k is None else [q.clone(), k.clone()]

    globals()["rotary"] = rotary
    rotary.__qualname__ = "rotary"
    plan = make_device(rotary).plan({"rope": ("rotary_embedding", {})}, mode="compiled")
    q, k, table = torch.randn(2, 3, 4), torch.randn(2, 1, 4), torch.ones(2, 2)
    assert len(plan.rope(q, None, table, table)) == 1
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (q, k, table)]
        got = plan.rope(fakes[0], fakes[1], fakes[2], fakes[2])
        assert [t.shape for t in got] == [q.shape, k.shape]
        assert len(plan.rope(fakes[0], None, fakes[2], fakes[2])) == 1
