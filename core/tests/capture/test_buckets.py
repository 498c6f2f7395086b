"""Captured steps of a plan: sizes, padding, checks at replay, accounts."""

from __future__ import annotations

import os
import threading
import warnings

import pytest
import torch

import trivet.memory
from captured_world import ACT, INPUTS, World, normed, rows
from trivet.capture.emulated import Emulated
from trivet.capture.session import Session
from trivet.errors import (
    AddressMoved,
    DomainError,
    OrderError,
    OutOfMemory,
)


@pytest.fixture
def world():
    return World()


def test_every_number_of_rows_gives_what_the_step_gives(world):
    graphs = world.buckets()
    world.rows.clear()
    for n in (3, 1, 4, 2, 3):
        given = rows(n, seed=n)
        found = graphs(world.plan, **given)
        torch.testing.assert_close(found["y"], normed(given["x"]))
        assert found["y"].shape == (n, 8)
        assert found["total"].shape == ()
    assert world.rows == []  # the host ran nothing
    assert [row.replays for row in graphs.report()] == [1, 1, 3]


def test_rows_of_padding_touch_no_cache(world):
    graphs = world.buckets()
    assert not world.values.any()
    graphs(world.plan, **{**rows(4), "slots": torch.tensor([4, 3, 2, 1])})
    world.values.fill_(5)
    graphs(world.plan, **{**rows(3), "slots": torch.tensor([0, -1, 5])})  # a row was filled before
    flat = world.values.view(6, 8)
    assert torch.equal(flat[1:5], torch.full((4, 8), 5.0))
    assert torch.equal(flat[[0, 5]], rows(3)["x"][[0, 2]])


def test_more_rows_than_the_largest_size_run_eagerly_and_are_counted(world):
    graphs = world.buckets()
    world.rows.clear()
    given = rows(5)
    torch.testing.assert_close(graphs(world.plan, **given)["y"], normed(given["x"]))
    assert graphs(world.plan, **rows(0))["y"].shape == (0, 8)
    assert world.rows == [5, 0]
    assert graphs.eager == 2


def test_inputs_are_those_that_were_named(world):
    graphs = world.buckets()
    for wrong in (
        {"x": rows(2)["x"]},
        {**rows(2), "more": torch.ones(2)},
        {**rows(2), "slots": torch.arange(3)},
        {**rows(2), "slots": torch.arange(2, dtype=torch.int32)},
        {**rows(2), "x": torch.ones(2, 7)},
    ):
        with pytest.raises(DomainError, match="input"):
            graphs(world.plan, **wrong)
    for wrong in ({"inputs": {}}, {"sizes": ()}, {"sizes": (0, 1)}):
        with pytest.raises(OrderError, match="sizes"):
            world.buckets(**wrong)


def test_what_it_costs_is_reported_and_booked(world):
    ledger = world.device.memory.ledger
    graphs = world.buckets()
    inputs = 4 * 8 * 4 + 4 * 8
    report = graphs.report()
    assert [row.size for row in report] == [1, 2, 4]
    assert all(row.seconds > 0 and row.graphs == 1 and row.boundaries == 0 for row in report)
    assert ledger.by_tag() == {"graph": inputs + sum(row.nbytes for row in report)}
    with graphs:
        pass
    graphs.release()
    assert ledger.by_tag() == {}
    with pytest.raises(OrderError, match="released"):
        graphs(world.plan, **rows(1))


def test_a_limit_of_the_ledger_refuses_and_leaves_nothing(world):
    ledger = world.device.memory.ledger
    for limit in (100, 200):  # the inputs alone, and the first graphs
        ledger.limit_bytes = limit
        with pytest.raises(OutOfMemory):
            world.buckets()
        assert ledger.used_bytes == 0
    ledger.limit_bytes = None
    assert world.buckets().report()


def test_an_exception_in_the_step_leaves_nothing(world):
    def step(op, x, slots):
        world.step(op, x, slots)
        if len(x) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.device.capture.buckets(world.plan, step, inputs=INPUTS, sizes=(1, 2, 4))
    assert world.device.memory.ledger.used_bytes == 0
    assert world.buckets()(world.plan, **rows(2))["y"].shape == (2, 8)


def test_a_weight_that_moved_or_ended_is_named(world):
    graphs = world.buckets()
    kept = world.weight
    world.weight = None
    graphs(world.plan, **rows(2))
    kept.data = torch.ones(8)
    with pytest.raises(AddressMoved, match=r"'weight' of site 'norm' lay at"):
        graphs(world.plan, **rows(2))
    del kept
    with pytest.raises(AddressMoved, match=r"'weight' of site 'norm' has ended"):
        graphs(world.plan, **rows(2))


def test_caches_that_were_released_are_named(world):
    caches = world.device.memory.kv_caches(1, 3, 2, 1, 8, torch.float32)

    def step(op, x, slots):
        op.write(x.view(-1, 1, 8), x.view(-1, 1, 8), *caches[0], slots)
        return x * 1

    graphs = world.device.capture.buckets(world.plan, step, inputs=INPUTS, sizes=(2,))
    graphs(world.plan, **rows(2))
    caches.release()
    with pytest.raises(AddressMoved, match="'k_cache' of site 'write' has ended"):
        graphs(world.plan, **rows(2))


def test_another_plan_and_a_stale_one_are_refused(world, monkeypatch):
    graphs = world.buckets()
    assert graphs.digest == world.plan.digest
    same = world.device.plan(
        {"norm": ("rms_norm", ACT), "write": ("kv_cache_write", {})}, mode="captured"
    )
    graphs(same, **rows(1))
    other = world.device.plan({"norm": ("rms_norm", {})}, mode="captured")
    with pytest.raises(OrderError, match=f"are of the plan {graphs.digest}, not of {other.digest}"):
        graphs(other, **rows(1))
    graphs.check(world.plan)
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=reference")
    with pytest.raises(OrderError, match=r"stale:\n.*rms_norm"):
        graphs.check(world.plan)
    with pytest.raises(OrderError, match="stale"):
        world.buckets()


def test_a_replay_or_a_capture_in_a_step_is_refused(world):
    graphs, capture = world.buckets(), world.device.capture

    def replays(op, x, slots):
        captured = not isinstance(op, type(world.plan.at(tokens=1)))
        return graphs(world.plan, x=x, slots=slots) if captured else None

    def captures(op, x, slots):
        captured = not isinstance(op, type(world.plan.at(tokens=1)))
        return world.buckets() if captured else None

    for step, text in ((replays, "replayed in a capture"), (captures, "capture is open")):
        with pytest.raises(OrderError, match=text):
            capture.buckets(world.plan, step, inputs=INPUTS, sizes=(1,))
    graphs(world.plan, **rows(2))


def test_any_thread_replays_but_one_at_a_time(world):
    inside, leave, found = threading.Event(), threading.Event(), []

    def wait(x):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert leave.wait(20)
        return x * 1

    def step(op, x, slots):
        return op.norm(trivet.capture.boundary(wait, x), world.weight)

    graphs = world.device.capture.buckets(world.plan, step, inputs=INPUTS, sizes=(2,))
    thread = threading.Thread(target=lambda: found.append(graphs(world.plan, **rows(2)).clone()))
    thread.start()
    assert inside.wait(20)
    with pytest.raises(OrderError, match="another thread"):
        graphs(world.plan, **rows(2))
    leave.set()
    thread.join(20)
    torch.testing.assert_close(found[0], normed(rows(2)["x"]))
    torch.testing.assert_close(graphs(world.plan, **rows(2)), normed(rows(2)["x"]))


def test_two_threads_do_not_capture_at_once(world):
    graphs, inside, leave = world.buckets(), threading.Event(), threading.Event()

    def work():
        inside.set()
        assert leave.wait(20)
        return torch.ones(1) + 1

    thread = threading.Thread(target=lambda: Session(Emulated(), None).record(work))
    thread.start()
    assert inside.wait(20)
    try:
        with pytest.raises(OrderError, match="captured already in this process"):
            world.buckets()
        graphs(world.plan, **rows(1))  # a replay in this thread is none of the other's business
    finally:
        leave.set()
        thread.join(20)
    world.buckets()


def test_a_forked_process_has_no_graphs(world):
    graphs = world.buckets()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads
        child = os.fork()
    if not child:
        try:
            graphs(world.plan, **rows(1))
        except OrderError as error:
            os._exit(0 if "another process" in error.what else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    graphs(world.plan, **rows(1))
