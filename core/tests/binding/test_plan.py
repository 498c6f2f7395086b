from __future__ import annotations

import copy
import gc
import random
import weakref
from pathlib import Path

import pytest
import torch

from stand_ins import OPS, make_device, norm_big, norm_over, norm_small, norm_vec, sample_top
from trivet import prefer, require
from trivet.errors import ConfigError, LockMismatch, NoImplementation, OrderError, UnknownName

NORM = {"dtype": torch.float32, "weight.dtype": torch.float32, "hidden": 64, "contiguous": True}
SITES = {
    "first": ("rms_norm", NORM | {"weight_in_float32": True}),
    "second": ("rms_norm", NORM),
    "head": ("sample_token", {}),
}


@pytest.fixture
def dev():
    return make_device(norm_vec, norm_small, norm_big, norm_over, sample_top)


def test_sites_are_attributes_of_plan_and_step(dev):
    plan = dev.plan(SITES)
    assert plan.first is plan.at(tokens=3).first is norm_vec
    assert plan.head is sample_top
    assert plan.second is not norm_vec, "weight_in_float32 stays at its default"
    assert plan.explain("first")[0].provider == "acme/vec"
    assert plan.at(tokens=5).second is norm_small
    assert plan.at(tokens=70).second is norm_big
    assert repr(plan) == f"<plan {plan.digest} of 3 sites on acme, eager>"


def test_a_plan_is_interned_and_hashable(dev):
    plan = dev.plan(SITES)
    assert dev.plan(dict(reversed(list(SITES.items())))).digest == plan.digest
    assert dev.plan(SITES) is plan
    assert make_device(norm_vec, norm_small, norm_big, norm_over, sample_top).plan(SITES) is plan
    assert hash(plan) == hash(plan.digest)
    assert {plan: 1}[dev.plan(SITES)] == 1
    assert dev.plan(SITES, mode="compiled") != plan
    assert dev.plan(SITES, observe=True) is not dev.plan(SITES, observe=True)


def test_an_unused_plan_is_let_go(dev):
    plan = dev.plan(SITES | {"unused": ("sample_token", {"vocab": 12345})})
    gone = weakref.ref(plan)
    del plan
    gc.collect()
    assert gone() is None


def test_two_plans_live_side_by_side(dev):
    one = dev.plan({"norm": ("rms_norm", {"tokens": 5})})
    two = dev.plan({"norm": ("rms_norm", {"tokens": 5})}, prefer={"rms_norm": "reference"})
    assert (one.norm, two.norm) == (norm_small, OPS["rms_norm"].reference)
    assert one.digest != two.digest
    assert one != two


def test_a_b_a_is_the_same_functions(dev):
    def functions():
        plan = dev.plan(SITES)
        return [plan.at(tokens=t).__dict__[n] for t in (1, 20, 99) for n in SITES]

    a = functions()
    with prefer(rms_norm="acme/big"):
        b = functions()
    assert all(x is y for x, y in zip(functions(), a, strict=True))
    assert any(x is not y for x, y in zip(a, b, strict=True))


def test_what_changes_after_a_plan_changes_nothing_and_is_named(dev, monkeypatch):
    plan = dev.plan(SITES)
    before = plan.at(tokens=3).second
    assert plan.stale() == []
    monkeypatch.setenv("TRIVET_PROVIDERS", "rms_norm=acme/big")
    monkeypatch.setenv("TRIVET_FORBID", "rms_norm=acme/small")
    monkeypatch.setenv("TRIVET_CHECK", "1")
    assert plan.at(tokens=3).second is before
    assert plan.stale() == [
        "settings.check: was False, is True",
        "settings.forbid.rms_norm: was absent, is ['acme/small']",
        "settings.providers.rms_norm: was absent, is ['acme/big']",
    ]
    with prefer(rms_norm="acme/vec"), require("graph_safe"):
        assert "context.prefer.rms_norm: was absent, is ['acme/vec']" in plan.stale()
        assert "context.require: was [], is ['graph_safe']" in plan.stale()


def test_a_file_that_appears_is_named(dev):
    plan = dev.plan(SITES)
    Path("trivet.toml").write_text('[providers.compiled]\nrms_norm = ["acme/big"]\n')
    names = [line.partition(":")[0] for line in plan.stale()]
    assert names == ["settings.config", "settings.file.providers.compiled.rms_norm"]


def test_numerics_modes_are_named_and_part_of_the_digest(dev):
    plan = dev.plan(SITES)
    torch.use_deterministic_algorithms(mode=True)
    torch.set_float32_matmul_precision("medium")
    try:
        assert plan.stale()[:2] == [
            "numerics.deterministic_algorithms: was False, is True",
            "numerics.float32_matmul_precision: was 'highest', is 'medium'",
        ]
        assert dev.plan(SITES).digest != plan.digest
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.set_float32_matmul_precision("highest")
    assert plan.stale() == []
    assert dev.plan(SITES).digest == plan.digest


def test_the_digest_does_not_depend_on_the_order_of_facts(dev):
    digest = dev.plan(SITES).digest
    rng = random.Random(4)  # noqa: S311  # an order, no secret
    for _ in range(5):
        shuffled = {}
        for name, (op, facts) in rng.sample(list(SITES.items()), len(SITES)):
            shuffled[name] = (op, dict(rng.sample(list(facts.items()), len(facts))))
        assert dev.plan(shuffled).digest == digest
    wider = SITES | {"head": ("sample_token", {"vocab": 7})}
    assert dev.plan(wider).digest != digest
    assert dev.plan(SITES | {"head": ("sample_token", {"seqs": "rows"})}).digest != digest


def test_the_semantic_plan_is_the_references(dev):
    sites = SITES | {"over": ("rms_norm_", NORM)}
    plan = dev.plan(sites)
    semantic = plan.semantic()
    assert semantic.first is OPS["rms_norm"].reference
    assert semantic.head is OPS["sample_token"].reference
    x, weight = torch.randn(2, 64), torch.ones(64)
    expected = OPS["rms_norm"].reference(x, weight)
    assert semantic.over(x, weight) is None
    assert torch.equal(x, expected)
    assert semantic.schedule("first", 1, 2) == []


@pytest.mark.parametrize("name", ["at", "use", "digest", "lock", "_x", "a b", "class", "1a", "", 5])
def test_reserved_and_impossible_names_are_refused(dev, name):
    with pytest.raises(UnknownName, match="a site may not be called"):
        dev.plan({name: ("sample_token", {})})


@pytest.mark.parametrize(
    "row",
    ["sample_token", ("sample_token",), ("sample_token", {}, 1), None, ("sample_token", None)],
)
def test_a_site_is_an_operator_and_facts(dev, row):
    with pytest.raises(UnknownName, match="site 'head' is"):
        dev.plan({"head": row})


def test_unknown_sites_are_named(dev):
    plan = dev.plan(SITES)
    for ask in (plan.explain, plan.at().schedule):
        with pytest.raises(UnknownName) as caught:
            ask("frist")
        assert caught.value.what == "no site 'frist'"
        assert "first" in caught.value.fix
    for thing in (plan, plan.at()):
        with pytest.raises(AttributeError, match="no site 'frist'; this plan has first, second"):
            thing.frist  # noqa: B018  # the look-up is the test
        assert not hasattr(thing, "frist")
    assert copy.copy(plan.at()).head is sample_top


@pytest.mark.parametrize("mode", ["fast", "", None, "Eager"])
def test_unknown_modes_are_refused(dev, mode):
    with pytest.raises(UnknownName, match="no mode"):
        dev.plan(SITES, mode=mode)
    with pytest.raises(UnknownName, match="no mode"):
        dev.explain("rms_norm", mode=mode)


def test_an_empty_plan_is_a_plan(dev):
    plan = dev.plan({})
    assert plan.at().providers() == {}
    with pytest.raises(UnknownName, match="no step variable 'tokens'"):
        plan.at(tokens=1)


def test_counting_needs_observation(dev):
    with pytest.raises(OrderError, match="this plan does not observe"):
        dev.plan(SITES).counts()


def test_a_plan_that_cannot_be_made_says_why(dev, monkeypatch):
    monkeypatch.setenv("TRIVET_FORBID", "sample_token=acme/top,reference")
    with pytest.raises(NoImplementation) as caught:
        dev.plan(SITES)
    assert [r.provider for r in caught.value.trace] == ["acme/top", "reference"]
    assert "order lists" in caught.value.fix
    monkeypatch.setenv("TRIVET_STRICT", "perhaps")
    with pytest.raises(ConfigError, match="TRIVET_STRICT"):
        dev.plan(SITES)


def test_a_plan_and_its_steps_cannot_be_written_to():
    plan = make_device().plan({"gate": ("silu_and_mul", {})})
    for shared in (plan, plan.at(tokens=3)):
        with pytest.raises(TypeError, match="shared and never changes: 'gate' cannot be set"):
            shared.gate = None
    assert repr(plan.at(tokens=3)) == "<step: gate=reference>"
    assert str(plan.explain("gate")) == "reference yes"


@pytest.mark.parametrize("lock", ["", [], True])
def test_what_is_no_lock_is_refused(lock):
    with pytest.raises(ConfigError, match="is no lock"):
        make_device().plan({"gate": ("silu_and_mul", {})}, lock=lock)


def test_tables_of_tuned_constants_are_part_of_the_lock(dev, tmp_path, monkeypatch):
    plain = dev.plan(SITES)
    assert "tuned" not in plain.lock
    table = tmp_path / "one.json"
    table.write_text("{}")
    monkeypatch.setenv("TRIVET_TUNED", str(tmp_path))
    plan = dev.plan(SITES)
    assert len(plan.lock["tuned"]) == 16
    assert plan.digest != plain.digest
    assert [line.partition(":")[0] for line in plain.stale()] == ["settings.tuned"]
    with pytest.raises(LockMismatch, match="tuned: locked nothing, now"):
        dev.plan(SITES, lock=plain.lock)
    monkeypatch.setenv("TRIVET_TUNED", str(tmp_path.parent / tmp_path.name / "."))
    assert plan.stale() == []
    table.write_text("{ }")
    assert plan.stale() != []
