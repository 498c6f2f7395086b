"""The state family: calls in fresh processes, calls among neighbours, and what it refuses."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
import torch

from trivet.catalogue.activation import silu_and_mul
from trivet.contracts import implements
from trivet_conformance.calls import fresh, fresh_program
from trivet_conformance.families import around, state
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Status
from trivet_conformance.selftest.mutants import VARIANTS
from trivet_conformance.selftest.selftest import PLUGIN, judge_variant
from trivet_conformance.subject.subject import from_functions

OWN = {v.name: v for v in VARIANTS if v.killer == state.NAME}

MODULE = """
import os, torch
from trivet.catalogue.activation import silu_and_mul
from trivet.contracts import implements
calls = []

@implements("silu_and_mul@1", name="dies")
def dies(x):
    if os.getpid() != PARENT:
        os.abort()
    return silu_and_mul.reference(x)

@implements("silu_and_mul@1", name="counts")
def counts(x):
    calls.append(x)
    return torch.full_like(silu_and_mul.reference(x), float(len(calls)))

@implements("silu_and_mul@1", name="right", deterministic=True)
def right(x):
    print("what a plugin prints is no answer")
    return silu_and_mul.reference(x)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A module that a fresh process can import too; the server then knows its folder."""
    folder = tmp_path_factory.mktemp("plugin")
    name = "state_of_a_test"
    (folder / f"{name}.py").write_text(f"PARENT = {os.getpid()}\n{MODULE}", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module(name)
        sys.modules.pop(name)
    fresh.close()


def target_of(*functions):
    return from_functions(functions, PLUGIN).targets[0]


def findings(target, what, *, quick=True):
    bench = Bench(0, quick=quick)
    return [c.run() for c in state.cases(target, bench) if f":{what}:" in c.name]


def one_of(target):
    bench = Bench(0, quick=True)
    dtypes = {"T": torch.float32}
    point, home = state.base_points(target, dtypes, bench, state.TOKENS, 1)[0]
    return state._Stateful(target, bench, point, home)


def test_only_this_family_kills_it():
    variant = OWN["works_only_after_another"]
    families = ("value", "repeat", state.NAME)
    subject = from_functions(variant.functions, PLUGIN)
    outcome = judge_variant(variant, subject, families, Bench(0, quick=True))
    assert outcome.killed == (state.NAME,), outcome.reasons


def test_the_state_of_a_call_is_seen_after_its_neighbours():
    """As a plugin that was not called yet, so that only the calls between can be at fault."""
    home = sys.modules[OWN["another_rounds_for_it"].functions[0].__module__]
    for name in ("another_rounds_for_it", "keeps_a_weight_after_another"):
        home._seen.clear()
        home._weights.clear()
        target = from_functions(OWN[name].functions, PLUGIN).targets[1]
        found = findings(target, "neighbours")
        assert found[0].status is Status.FAIL
        assert "the call after others, not as the call before" in found[0].reason


def test_every_call_is_the_first_one_of_its_process(module):
    target = target_of(module.counts)
    one = one_of(target)
    given = fresh.packed(target.implementation, one.placed())
    for _ in range(3):
        (made,) = fresh.fresh_call(target.implementation, "none", given, torch.device("cpu"))
        assert made.unique().tolist() == [1.0]
    assert not module.calls


def test_a_right_call_passes_once_in_quick_grids_and_for_every_dtype_else(module):
    target = target_of(module.right)
    quick, whole = findings(target, "fresh"), findings(target, "fresh", quick=False)
    assert [f.status for f in quick] == [Status.PASS]
    assert [f.status for f in whole] == [Status.PASS] * 3


def test_a_device_that_no_fork_reaches_is_asked_for_in_whole_processes(monkeypatch):
    asked = []

    class Started:
        def ask(self, row):
            asked.append(row["fork"])
            return ("unforkable", "the driver runs") if row["fork"] else ("made", b"")

    monkeypatch.setattr(fresh, "_unforkable", set())
    monkeypatch.setattr(fresh, "_server", Started)
    for _ in range(2):
        assert fresh._asked({}, "another") == ("made", b"")
    assert asked == [True, False, False]
    assert fresh_program._unreached("cpu") is None
    assert fresh_program._unreached("no_such")[0] == "unforkable"


def test_a_process_that_dies_is_a_crash_and_the_next_call_is_made(module):
    (found,) = findings(target_of(module.dies), "fresh")
    assert found.status is Status.CRASH
    assert "signal 6" in found.reason
    assert findings(target_of(module.right), "fresh")[0].status is Status.PASS


def test_a_server_that_is_gone_is_started_again(module):
    process = fresh._server()._process
    process.kill()
    process.wait()
    assert findings(target_of(module.right), "fresh")[0].status is Status.PASS


@implements("silu_and_mul@1", name="nowhere")
def nowhere(x):
    return silu_and_mul.reference(x)


nowhere.__module__ = "a_module_that_no_process_finds"


def test_what_cannot_be_imported_is_not_run_and_says_why():
    (found,) = findings(target_of(nowhere), "fresh")
    assert found.status is Status.NOT_RUN
    assert "unknown" in found.reason


def test_a_plugin_of_one_implementation_has_no_neighbours(module):
    assert {f.status for f in findings(target_of(module.right), "neighbours")} == {
        Status.NOT_SUPPORTED
    }


def test_neighbours_take_the_dims_and_dtypes_of_the_call():
    own = from_functions(OWN["reads_what_was_written_last"].functions, PLUGIN).targets
    attention = next(t for t in own if t.op.name == "paged_attention")
    other = next(t for t in own if t is not attention).implementation
    bench = Bench(0, quick=True)
    dtypes = {"T": torch.bfloat16, "C": torch.bfloat16}
    point, home = state.base_points(attention, dtypes, bench, state.TOKENS, 1)[0]
    ((_, (first, second)),) = state.requests(attention, bench, point, other)
    cache = attention.lay_out(bench, point, home).arguments["k_cache"]
    assert first.arguments["k_cache"].shape == second.arguments["k_cache"].shape == cache.shape
    assert first.arguments["k"].dtype == torch.bfloat16
    assert not torch.equal(first.arguments["k"], second.arguments["k"])


def test_a_flipped_bit_and_stale_results_are_refused(module):
    """Of a deterministic one both are shown; one that judges nothing is an error, no pass."""
    one = one_of(target_of(module.right))
    truth = one.bench.truth(one.target.op, one.point)
    names = [n for n, _ in one._wrong_results(truth.native, bitwise=True)]
    assert names == ["a flipped bit", "results of other inputs"]
    bit = around.flipped(truth.native[0])
    assert int((bit != truth.native[0]).sum()) == 1
    right = [("first", truth.native), ("second", list(truth.native))]
    assert one.settled(right).status is Status.PASS
    assert one.settled([right[0], ("second", [bit])]).status is Status.FAIL
    stale = [one.target.op.reference(**one.bench.arguments(one.target.op, one.point, 1))]
    assert one.settled([right[0], ("second", stale)]).status is Status.FAIL


def test_a_check_without_power_is_an_error(module, monkeypatch):
    one = one_of(target_of(module.right))
    truth = one.bench.truth(one.target.op, one.point)
    monkeypatch.setattr(around, "flipped", torch.clone)
    found = one.settled([("first", truth.native)])
    assert found.status is Status.ERROR
    assert "a flipped bit" in found.reason


def test_a_call_that_does_not_end_is_a_timeout(module, monkeypatch):
    monkeypatch.setattr(fresh, "SECONDS", 0.0)
    (found,) = findings(target_of(module.right), "fresh")
    assert found.status is Status.TIMEOUT
    fresh.close()
