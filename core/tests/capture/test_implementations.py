"""What is captured of implementations: those that lie, those that may not, and a vendor's own."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

import trivet.memory
from captured_world import INPUTS, World, normed, rows
from stand_ins import OPS, attend_one, make_device, norm_vec
from trivet.capture import DeviceCapture, Input
from trivet.contracts import DeviceInfo, Execution, implements
from trivet.errors import CaptureUnsafe, PluginBroken, PromiseBroken


@pytest.fixture
def world():
    return World()


@implements("silu_and_mul@1", name="asks", domain=[])
def asks(x):
    """Right, and not for a graph: it reads a number."""
    assert float(x.abs().sum()) >= 0
    return torch.nn.functional.silu(x[..., :4]) * x[..., 4:]


@implements("silu_and_mul@1", name="lies", graph_safe=True)
def lies(x):
    return asks(x)


@implements("silu_and_mul@1", name="hidden", graph_safe=True)
def hidden(x):
    """Computes behind torch's back."""
    result = torch.empty(*x.shape[:-1], x.shape[-1] // 2)
    with torch._C._DisableTorchDispatch():
        result.copy_(asks(x))
    return result


GLU = {"glu": ("silu_and_mul", {"dtype": torch.float32, "inter": 4, "contiguous": True})}


def glu(world, **given):
    def step(op, x):
        return op.glu(x + 1) * 2

    inputs = {"x": Input(torch.float32, (8,))}
    return world.device.capture.buckets(world.plan, step, inputs=inputs, sizes=(2,), **given)


def test_what_is_not_graph_safe_runs_between_two_graphs():
    world = World(asks, mode="eager", sites=GLU)
    graphs = glu(world)
    (row,) = graphs.report()
    assert (row.graphs, row.boundaries) == (2, 1)
    x = rows(2)["x"]
    torch.testing.assert_close(graphs(world.plan, x=x), asks(x + 1) * 2)
    assert graphs.counts() == {("glu", "acme/asks"): 1}


def test_checked_sites_are_checked_at_every_replay(monkeypatch):
    monkeypatch.setenv("TRIVET_CHECK", "1")
    world = World()
    graphs = world.buckets()
    assert [row.boundaries for row in graphs.report()] == [2, 2, 2]
    torch.testing.assert_close(graphs(world.plan, **rows(3))["y"], normed(rows(3)["x"]))
    world.weight.data = torch.ones(8, dtype=torch.float64)
    with pytest.raises(PromiseBroken, match=r"promised weight\.dtype"):
        graphs(world.plan, **rows(3))


def test_a_false_claim_is_refused_by_name():
    for function, why in ((lies, "reads a number on the host"), (hidden, "writes a result by no")):
        world = World(function, sites=GLU)
        name = function.__trivet__[0].name
        text = rf"silu_and_mul \(acme/{name}\), site 'glu', {why}"
        with pytest.raises(CaptureUnsafe, match=text) as caught:
            glu(world)
        assert caught.value.operator == "silu_and_mul"
        del caught  # its frames hold the inputs
        gc.collect()
        assert world.device.memory.ledger.used_bytes == 0


@implements("kv_cache_write@1", name="hidden", graph_safe=True)
def hidden_write(k, v, k_cache, v_cache, slots, layout="NHD"):
    with torch._C._DisableTorchDispatch():
        OPS["kv_cache_write"].reference(k, v, k_cache, v_cache, slots, layout)


def test_a_cache_that_is_written_behind_torch_is_refused_although_padding_writes_nothing():
    world = World(norm_vec, hidden_write)
    with pytest.raises(
        CaptureUnsafe, match=r"\(acme/hidden\), site 'write', writes a result by no"
    ):
        world.buckets()


def test_a_schedule_is_written_again_before_each_replay(monkeypatch):
    made = []

    def prepare_step(facts, table, starts, lengths, max_query, max_length, out=None):
        made.append(lengths.tolist())
        found = out or [torch.zeros(1, dtype=torch.int64)]
        found[0].fill_(sum(made[-1]))
        return found

    monkeypatch.setitem(attend_one.__trivet__[0].__dict__, "prepare_step", prepare_step)
    device, cache = make_device(attend_one), torch.zeros(3, 2, 1, 8)
    plan = device.plan({"attention": ("paged_attention", {"dtype": torch.float32, "q.rows": 8})})

    def step(op, q, lengths, table):
        batch = (table, torch.arange(len(q) + 1, dtype=torch.int32), lengths, 1, 6)
        schedule = op.schedule("attention", *batch)
        y = op.attention(q.view(-1, 1, 8), cache, cache, *batch, 1.0, schedule)
        return y, schedule[0] + 0

    inputs = {"q": Input(torch.float32, (8,)), "lengths": Input(torch.int32)}
    inputs["table"] = Input(torch.int32, (3,))
    graphs = device.capture.buckets(
        plan, step, sizes=(2,), inputs=inputs, at=lambda n: {"tokens": n, "max_query_len": 1}
    )
    made.clear()
    lengths, table = torch.tensor([3, 2]).int(), torch.zeros(2, 3, dtype=torch.int32)
    _, total = graphs(plan, q=torch.ones(2, 8), lengths=lengths, table=table)
    assert made == [[3, 2]]
    assert total.tolist() == [5]


# --- a vendor's capture ----------------------------------------------------------------------


class Vendor:
    """A capture that computes nothing and notes what it is asked."""

    def __init__(self, broken=""):
        self.said, self.broken = [], broken

    def _say(self, word):
        self.said.append(word)
        if word == self.broken:
            raise RuntimeError(f"{word} is broken")

    def pool(self):
        return "a pool"

    def begin(self, pool):
        assert pool == "a pool"
        self._say("begin")

    def end(self):
        self._say("end")
        return SimpleNamespace(
            nbytes=100, replay=lambda: self._say("replay"), release=lambda: self._say("release")
        )

    def abandon(self):
        self._say("abandon")


def with_vendor(world, capturer):
    memory = trivet.memory.open(torch.device("cpu"))
    info = DeviceInfo("acme", execution=Execution.HARDWARE)
    return memory, DeviceCapture(info, memory, capturer)


def test_a_vendors_capture_is_used_and_gives_the_devices_word(world):
    vendor = Vendor()
    memory, capture = with_vendor(world, vendor)
    assert (capture.execution, world.device.capture.execution) == ("hardware", "emulated")
    graphs = capture.buckets(world.plan, world.step, inputs=INPUTS, sizes=(1, 2))
    assert vendor.said == ["begin", "end"] * 2
    graphs(world.plan, **rows(2))
    assert vendor.said[4:] == ["replay"]
    assert memory.ledger.by_tag()["graph"] == 2 * 100 + 2 * 32 + 2 * 8
    graphs.release()
    assert vendor.said[5:] == ["release"] * 2


def test_a_segment_is_computed_before_a_boundary_reads_it(world):
    vendor = Vendor()
    _, capture = with_vendor(world, vendor)

    def step(op, x, slots):
        return trivet.capture.boundary(torch.neg, op.norm(x, world.weight)) + 1

    graphs = capture.buckets(world.plan, step, inputs=INPUTS, sizes=(1,))
    assert vendor.said == ["begin", "end", "replay", "begin", "end"]
    graphs(world.plan, **rows(1))
    assert vendor.said[5:] == ["replay", "replay"]


@pytest.mark.parametrize("broken", ["begin", "end"])
def test_a_vendors_failure_ends_the_capture(world, broken):
    vendor = Vendor(broken)
    memory, capture = with_vendor(world, vendor)
    with pytest.raises(RuntimeError, match="broken"):
        capture.buckets(world.plan, world.step, inputs=INPUTS, sizes=(1,))
    assert memory.ledger.used_bytes == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert world.buckets()(world.plan, **rows(1))["y"].shape == (1, 8)


def test_what_the_step_does_wrong_abandons_the_vendors_recording(world):
    vendor = Vendor()
    _, capture = with_vendor(world, vendor)
    with pytest.raises(CaptureUnsafe, match="reads a number"):
        capture.buckets(
            world.plan, lambda op, x, slots: x * float(x.sum()), inputs=INPUTS, sizes=(1,)
        )
    assert vendor.said == ["begin", "abandon"]


def test_a_hook_that_returns_something_else_is_a_broken_plugin(world):
    with pytest.raises(PluginBroken, match="lacks pool, begin, end or abandon"):
        with_vendor(world, SimpleNamespace(begin=len))
