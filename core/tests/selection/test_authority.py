from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from stand_ins import make_device, norm_big, norm_small, norm_vec, sample_top
from trivet import prefer, require
from trivet.errors import ConfigError, LockMismatch, UnknownName
from trivet.selection import lock as locks

SITES = {"norm": ("rms_norm", {"tokens": 8})}
LAYERS = ("argument", "context", "lock", "environment", "file")
SAID = {
    "argument": "preferred by argument",
    "context": "preferred by prefer()",
    "lock": "preferred by lock",
    "environment": "preferred by TRIVET_PROVIDERS rms_norm",
    "file": "[providers] rms_norm",
}


@pytest.fixture
def dev():
    return make_device(norm_vec, norm_small, norm_big, sample_top)


class Speaker:
    """Says one order list at any layer."""

    def __init__(self, dev, monkeypatch):
        self.dev = dev
        self.monkeypatch = monkeypatch
        self.arguments = {}
        self.stack = contextlib.ExitStack()

    def say(self, layer, provider):
        match layer:
            case "argument":
                self.arguments["prefer"] = {"rms_norm": provider}
            case "context":
                self.stack.enter_context(prefer(rms_norm=provider))
            case "lock":
                self.arguments["lock"] = self.lock(provider)
            case "environment":
                self.monkeypatch.setenv("TRIVET_PROVIDERS", f"rms_norm={provider}")
            case "file":
                Path("trivet.toml").write_text(f'[providers]\nrms_norm = ["{provider}"]\n')

    def lock(self, provider):
        plan = make_device(norm_vec, norm_small, norm_big, sample_top).plan(
            SITES, prefer={"rms_norm": provider}
        )
        document = dict(plan.lock)
        return document | {"digest": locks.digest(document)}

    def plan(self):
        with self.stack:
            return self.dev.plan(SITES, **self.arguments)


PAIRS = list(itertools.combinations(LAYERS, 2))


@pytest.mark.parametrize(("high", "low"), [p for p in PAIRS if p[1] != "lock"])
def test_the_higher_layer_decides(dev, monkeypatch, high, low):
    speaker = Speaker(dev, monkeypatch)
    speaker.say(low, "acme/big")
    speaker.say(high, "acme/small")
    first = str(speaker.plan().explain("norm")[0])
    assert first.startswith("acme/small")
    assert SAID[high] in first


@pytest.mark.parametrize("high", ["argument", "context"])
def test_what_overrules_a_lock_then_disagrees_with_it(dev, monkeypatch, high):
    speaker = Speaker(dev, monkeypatch)
    speaker.say("lock", "acme/small")
    speaker.say(high, "reference")
    with pytest.raises(LockMismatch) as caught:
        speaker.plan()
    (field,) = caught.value.fields
    locked, now = field.removeprefix("sites.norm.choices: locked ").split(", now ")
    assert locked.startswith("acme/small")
    assert now == "reference"


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_stands_above_the_plugins_own_order(dev, monkeypatch, layer):
    assert str(dev.plan(SITES).explain("norm")[0]).startswith("acme/vec")
    speaker = Speaker(dev, monkeypatch)
    speaker.say(layer, "acme/small")
    first = str(speaker.plan().explain("norm")[0])
    assert first.startswith("acme/small")
    assert SAID[layer] in first


def test_the_rest_keeps_its_order(dev):
    ranked = [r.provider for r in dev.explain("rms_norm", prefer={"rms_norm": ["acme/big"]})]
    assert ranked == ["acme/big", "acme/vec", "acme/small", "reference"]
    both = prefer(rms_norm=["acme/small", "acme/big"])
    with both:
        assert [r.provider for r in dev.explain("rms_norm")][:2] == ["acme/small", "acme/big"]


def test_an_inner_prefer_speaks_before_the_outer_and_both_end(dev):
    with prefer(rms_norm="acme/big"):
        with prefer(rms_norm="reference"):
            assert [r.provider for r in dev.explain("rms_norm")][:2] == ["reference", "acme/big"]
        assert dev.explain("rms_norm")[0].provider == "acme/big"
    assert dev.explain("rms_norm")[0].provider == "acme/vec"


def test_a_star_means_every_operator_and_gives_way_to_its_own_entry(dev, monkeypatch):
    monkeypatch.setenv("TRIVET_PROVIDERS", "*=reference")
    assert dev.explain("rms_norm")[0].provider == "reference"
    assert dev.explain("sample_token")[0].provider == "reference"
    monkeypatch.setenv("TRIVET_PROVIDERS", "*=reference;rms_norm=acme/big")
    assert dev.explain("rms_norm")[0].provider == "acme/big"
    assert dev.explain("rms_norm", prefer={"*": "acme/small"})[0].provider == "acme/small"


def test_a_mode_has_its_own_order_list(dev):
    Path("trivet.toml").write_text(
        '[providers]\nrms_norm = ["acme/big"]\n[providers.captured]\nrms_norm = ["acme/vec"]\n'
    )
    assert dev.plan(SITES).explain("norm")[0].provider == "acme/big"
    assert dev.plan(SITES, mode="captured").explain("norm")[0].provider == "acme/vec"


@pytest.mark.parametrize("how", ["argument", "context", "environment", "file"])
@pytest.mark.parametrize("forbid", ["environment", "file"])
def test_forced_and_forbidden_at_once_is_an_error(dev, monkeypatch, how, forbid):
    speaker = Speaker(dev, monkeypatch)
    speaker.say(how, "acme/small")
    if forbid == "environment":
        monkeypatch.setenv("TRIVET_FORBID", "rms_norm=acme/small")
    else:
        with Path("trivet.toml").open("a") as file:
            file.write('[forbid]\nrms_norm = ["acme/small"]\n')
    with speaker.stack, pytest.raises(ConfigError) as caught:
        dev.plan(SITES, **speaker.arguments)
    assert "'acme/small' for rms_norm is asked for by" in caught.value.what
    assert "and forbidden by" in caught.value.what
    assert SAID[how].removeprefix("preferred by ").partition(" ")[0] in caught.value.what


def test_what_is_forbidden_does_not_run_and_says_who_forbids(dev, monkeypatch):
    monkeypatch.setenv("TRIVET_FORBID", "*=acme/vec;rms_norm=acme/small")
    rows = {r.provider: r for r in dev.explain("rms_norm")}
    assert str(rows["acme/vec"]) == "acme/vec no: forbidden by TRIVET_FORBID *"
    assert str(rows["acme/small"]) == "acme/small no: forbidden by TRIVET_FORBID rms_norm"
    assert rows["acme/big"].verdict == "guarded"


@pytest.mark.parametrize(
    ("lists", "problem", "near"),
    [
        ("rms_nrom=acme/vec", "an order list names no operator: 'rms_nrom'", "rms_norm"),
        ("rms_norm=acme/vex", "no provider for 'rms_norm': 'acme/vex'", "acme/vec"),
        ("rms_norm=acme/top", "no provider for 'rms_norm': 'acme/top'", "acme/"),
        ("*=acme/topp", "no provider for '*': 'acme/topp'", "acme/top"),
    ],
)
@pytest.mark.parametrize("variable", ["TRIVET_PROVIDERS", "TRIVET_FORBID"])
def test_unknown_names_list_near_misses(dev, monkeypatch, variable, lists, problem, near):
    monkeypatch.setenv(variable, lists)
    with pytest.raises(UnknownName) as caught:
        dev.bind("rms_norm")
    assert problem in caught.value.what
    assert near in caught.value.fix


def test_unknown_names_are_refused_in_contexts_and_arguments(dev):
    with prefer(rms_norm="acme/nothing"), pytest.raises(UnknownName):
        dev.bind("sample_token")
    with pytest.raises(UnknownName):
        dev.bind("rms_norm", prefer={"rms_norm": "nothing"})
    for wrong in (5, None, [5], [["acme/vec"]]):
        with pytest.raises(UnknownName, match="the order list of 'rms_norm' is"):
            dev.bind("rms_norm", prefer={"rms_norm": wrong})
        with pytest.raises(UnknownName), prefer(rms_norm=wrong):
            pass


def test_require_admits_only_what_declares_it(dev):
    with require("deterministic"):
        rows = {r.provider: str(r) for r in dev.explain("rms_norm")}
    assert rows["acme/small"] == "acme/small no: does not declare deterministic"
    assert rows["acme/vec"].startswith("acme/vec guarded")
    with require("deterministic", "graph_safe"), require("stream_ordered"):
        rows = {r.provider: r.verdict for r in dev.explain("rms_norm")}
    assert rows == {
        "acme/vec": "guarded",
        "acme/small": "no",
        "acme/big": "no",
        "reference": "yes",
    }


@pytest.mark.parametrize("wrong", ["fast", "batch-invariant", ""])
def test_unknown_properties_are_refused(wrong):
    with pytest.raises(UnknownName) as caught, require(wrong):
        pass
    assert "batch_invariant" in caught.value.fix


def test_a_list_that_names_a_form_is_told_that_it_is_for_all_forms():
    dev = make_device(norm_small)
    with pytest.raises(UnknownName, match="a form of 'rms_norm'"):
        dev.bind("rms_norm", prefer={"rms_norm_out": "acme/small"})
