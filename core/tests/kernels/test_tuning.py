from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from itertools import count
from math import inf
from types import SimpleNamespace

import pytest
import torch

import required
import tuned_kernels
from trivet.errors import ConfigError, DeclarationError, PluginBroken
from trivet.kernels.triton import Tuned, kernel_set
from trivet.kernels.triton.kernel_set import Trials, Tunable
from trivet.kernels.triton.tuning import trials
from trivet.kernels.triton.tuning.kept import Kept
from trivet.kernels.triton.tuning.session import Session
from trivet.kernels.triton.tuning.table import merge

CPU = torch.device("cpu")
KEY = {"width": 8}


@pytest.fixture
def session(tmp_path, monkeypatch, request):
    monkeypatch.setattr(kernel_set, "version", lambda name: "3.9.1")
    if "dies" not in request.node.name:
        monkeypatch.setattr("trivet.kernels.triton.tuning.session.Children", tuned_kernels.Here)
    kernels = tuned_kernels.kernel_set(tmp_path / "gates.toml")

    def make(**others):
        others = {"kept": Kept(tmp_path / "measured"), "processes": 1} | others
        return Session(kernels, CPU, tmp_path / "tables" / "one.json", **others)

    return make


def rows_of(session):
    return {r["rows"]: r for r in json.loads(session.table.read_text())["rows"]}


def test_the_fastest_config_is_written_and_read_by_whoever_asks(session, tmp_path, monkeypatch):
    made = session()
    made.run([("double", KEY, (1, 4))])
    rows = rows_of(made)
    assert rows[1]["config"] == {"BLOCK": 2, "cold": 20}  # of equals the fastest cold one
    assert (rows[1]["us"], rows[1]["cold_us"], rows[1]["default_us"]) == (10, 20, 12)
    assert rows[4]["config"] == {"BLOCK": 8, "cold": 20}
    assert made.complete
    document = json.loads(made.table.read_text())
    assert (document["arch"], document["schema"]) == ("one", 1)
    assert document["measured"]["driver"] == "1.0"
    assert document["measured"]["triton"] == "3.9.1"

    tuned = Tuned("double", tmp_path / "wheel", space=tuned_kernels.space, default=lambda key: ())
    assert tuned.buckets("one", KEY) == ()
    monkeypatch.setenv("TRIVET_TUNED", str(made.table.parent))
    assert [limit for limit, _ in tuned.buckets("one", KEY)] == [1, inf]
    assert tuned.measured("one", KEY)
    assert not tuned.measured("two", KEY)


def test_a_config_that_is_wrong_or_fails_or_dies_is_refused_and_nothing_else(session):
    key = {"width": 8, "kinds": "wrong raises dies nothing"}
    made = session()
    made.run([("double", key, (1, 2))])
    for place in made.places:
        told = {t.config.get("kind"): (t.word, t.reason) for t in place.tried if t.word != "ok"}
        assert told["wrong"][0] == "wrong"
        assert "result 0 differs in" in told["wrong"][1]
        assert told["raises"] == ("failed", "RuntimeError: out of resources")
        assert told["dies"] == ("failed", "its process ended by signal 11")
        assert "nothing to compare" in told["nothing"][1]
        assert len(place.timed) == len(place.tried) - 4
        assert "kind" not in place.best.config


def test_what_was_measured_is_not_measured_again(session, monkeypatch):
    asked = []
    monkeypatch.setattr(Session, "_measure", spy(asked, Session._measure))
    session().run([("double", KEY, (1,))])
    first = len(asked)
    assert first == 5
    made = session()
    made.run([("double", KEY, (1,))])
    assert len(asked) == first
    assert rows_of(made)[1]["us"] == 10
    session(kept=None).run([("double", KEY, (1,))])
    assert len(asked) == 2 * first
    monkeypatch.setattr(tuned_kernels.Clock, "about", lambda self: {"device": "Another"})
    session().run([("double", KEY, (1,))])
    assert len(asked) == 3 * first


def spy(asked, measure):
    def measured(self, tuned, place, config, verdict):
        asked.append(config)
        return measure(self, tuned, place, config, verdict)

    return measured


def test_a_run_that_is_stopped_leaves_a_table_that_holds(session):
    ticks = count()
    made = session(seconds=12, clock=lambda: next(ticks))
    made.run([("double", KEY, (1, 4)), ("double", {"width": 16}, (1,))])
    assert not made.complete
    rows = rows_of(made)
    assert rows[1]["us"] >= 10
    assert (rows[4]["config"], rows[4]["us"]) == ({"BLOCK": 8}, None)
    assert [p.key for p in made.places] == [KEY, KEY]
    again = session()
    again.run([("double", KEY, (1, 4))])
    assert again.complete
    assert rows_of(again)[4]["config"] == {"BLOCK": 8, "cold": 20}


def test_a_device_that_fails_ends_the_run_and_keeps_what_there_is(session, monkeypatch):
    def cold(self, call):
        if call.us == 10:
            raise RuntimeError("an illegal address")
        return [1.0]

    monkeypatch.setattr(tuned_kernels.Clock, "cold", cold)
    monkeypatch.setattr(trials, "spoilt", lambda device: "the device fails")
    made = session()
    with pytest.raises(PluginBroken, match=r"'BLOCK': 2.*an illegal address; the device fails"):
        made.run([("double", KEY, (1, 4))])
    assert rows_of(made)[1]["config"] == {"BLOCK": 4}


def test_rows_take_the_places_of_older_ones_and_say_what_they_were_measured_under(tmp_path):
    path = tmp_path / "one.json"
    row = {"kernel": "k", "key": {"a": 1}, "rows": 1, "config": {"B": 1}, "us": 2.0}
    merge(path, "one", {"torch": "1", "date": "monday"}, [row, row | {"rows": 8}])
    late = [row | {"config": {"B": 2}, "us": 1.0}, row | {"rows": 8, "config": {}, "us": None}]
    merge(path, "one", {"torch": "2", "date": "friday"}, late)
    found = json.loads(path.read_text())
    assert found["measured"] == {"torch": "2", "date": "friday"}
    assert [r["config"] for r in found["rows"]] == [{"B": 2}, {"B": 1}]
    assert "measured" not in found["rows"][0]
    assert found["rows"][1]["measured"] == {"torch": "1", "date": "monday"}
    with pytest.raises(ConfigError, match="for 'one'"):
        merge(path, "two", {}, [row])
    path.write_text("{")
    with pytest.raises(ConfigError, match="no table"):
        merge(path, "one", {}, [row])
    assert {p.name for p in tmp_path.iterdir()} == {"one.json", ".one.json.lock"}


def test_a_damaged_or_foreign_measurement_is_none(tmp_path):
    kept = Kept(tmp_path / "m")
    kept.put({"a": 1}, {"us": 1.0})
    assert kept.get({"a": 1}) == {"us": 1.0}
    assert kept.get({"a": 2}) is None
    (file,) = (tmp_path / "m").iterdir()
    file.write_text(file.read_text().replace('"a": 1', '"a": 3'))
    assert kept.get({"a": 1}) is None
    file.write_text("{")
    assert kept.get({"a": 1}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_results_may_differ_by_the_order_of_summation_and_no_more(dtype):
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    wanted = x.to(dtype)
    step = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float8_e4m3fn: 2**-4}[dtype]
    assert trials.differs([(x * (1 + step)).to(dtype)], [wanted]) == ""
    broken = wanted.clone()
    broken[3] = 8.0
    assert "differs in 1 of 64 elements, first at (3,)" in trials.differs([broken], [wanted])


def test_shapes_counts_integers_and_nans_are_compared():
    x, nan = torch.arange(4), torch.tensor([1.0, torch.nan, torch.inf])
    assert trials.differs([nan], [nan.clone()]) == ""
    assert trials.differs([nan.nan_to_num()], [nan]) != ""
    assert trials.differs([x + 1], [x]) != ""
    assert "1 results" in trials.differs([x], [x, x])
    assert "result 0 is" in trials.differs([x], [x.int()])
    assert trials.differs([torch.empty(0)], [torch.empty(0)]) == ""


def test_an_interpreted_config_that_forgets_elements_is_wrong():
    required.triton()
    import tuned_triton

    who = "tuned_triton", "double", tuned_triton.trial
    verdicts = [
        trials.attempt(*who, {"width": 24}, config, [1, 2], "cpu", "one")
        for config in trials.choices(tuned_triton.TUNED, "one", {"width": 24}, 1)
    ]
    assert [v[1].word for v in verdicts] == ["ok", "ok", "ok", "wrong"]
    assert verdicts[3][2].reason.startswith(
        "result 0 differs in 24 of 48 elements, first at (0, 4)"
    )


def test_a_trial_may_call_what_keeps_its_launches(session, monkeypatch):
    made = []

    @functools.cache
    def launches(width):
        made.append(tuned_kernels.TUNED.buckets("one", {"width": width}))
        return made[-1][0][1]

    def trial(key, rows, config, device):
        x = torch.randn(rows, key["width"])
        return lambda: x * launches(key["width"])["BLOCK"] ** 0, x.nbytes

    launches.__module__ = "tuned_package.kernels"
    monkeypatch.setitem(sys.modules, "tuned_package.kernels", SimpleNamespace(launches=launches))
    one = Tunable("tuned_package.kernels", tuned_kernels.TUNED, Trials(trial, (KEY,)))
    for block in (2, 4):
        prepared = trials.prepared(one, KEY, 3, {"BLOCK": block}, CPU)
        assert made[-1] == ((inf, {"BLOCK": block}),)
        assert torch.equal(prepared.call(), prepared.first)
        assert prepared.moved == 3 * 8 * 4
    assert len(made) == 2
    odd = {"width": 8, "extra": 1}
    with pytest.raises(DeclarationError, match=r"asks for \{'width': 8\}, not for"):
        trials.prepared(one, odd, 3, {"BLOCK": 2}, CPU)
    assert tuned_kernels.TUNED.buckets("one", KEY)[0] == (1, {"BLOCK": 4})


def test_trials_may_stand_apart_from_the_kernels(session, tmp_path, monkeypatch):
    kernels = tuned_kernels.kernel_set(tmp_path / "gates.toml")
    apart = Trials(tuned_kernels.trial, ({"width": 4},), (2, 3))
    assert replace(kernels, trials={"double": apart}).tuned()["double"].trials.keys == (KEY,)
    monkeypatch.setattr(tuned_kernels.TUNED, "trial", None)
    assert kernels.tuned() == {}
    assert replace(kernels, trials={"double": apart}).tuned()["double"].trials is apart
