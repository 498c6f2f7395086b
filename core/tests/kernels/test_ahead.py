from __future__ import annotations

import pytest

import tuned_kernels
from trivet.errors import ConfigError, DeclarationError
from trivet.kernels.triton import CodeFacts, gates, kernel_set
from trivet.kernels.triton.ahead import compiled

TEXT = tuned_kernels.GATES


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_set, "version", lambda name: "3.9.1")
    return tuned_kernels.kernel_set(tmp_path / "gates.toml")


def test_each_variant_is_judged_by_the_gates_of_its_triton_and_arch(kernels):
    found = {(b.variant, b.arch): b for b in compiled(kernels, ["one", "two"])}
    verdicts = {at: b.verdict for at, b in found.items() if at[1] == "one"}
    assert verdicts == {
        ("small", "one"): "ok",
        ("small_spills", "one"): "breach",
        ("small_mma", "one"): "breach",
        ("other", "one"): "unmeasured",
        ("broken", "one"): "breach",
        ("dead", "one"): "breach",
    }
    assert {b.verdict for b in found.values() if b.arch == "two"} == {"unmeasured"}
    assert found["small_spills", "one"].breaches == (
        "stack 8 bytes, at most 0",
        "shared 101 bytes, at most 100",
        "widest load 8 bytes, at least 16",
    )
    assert found["small_mma", "one"].breaches == ("no mma in its code",)
    assert found["broken", "one"].breaches[0].startswith("kernel broken does not compile")
    assert found["dead", "one"].breaches == ("its process ended by signal 9",)
    assert found["small", "one"].facts.code == 11
    assert found["small", "two"].facts.code == 22


def test_another_series_of_triton_is_unmeasured(kernels, monkeypatch):
    monkeypatch.setattr(kernel_set, "version", lambda name: "4.0.0")
    monkeypatch.setattr("trivet.kernels.triton.ahead.Children", tuned_kernels.Here)
    (found,) = compiled(kernels, ["one"], ["small_spills"])
    assert (found.verdict, found.breaches) == ("unmeasured", ())


def test_a_later_gate_speaks_for_what_it_names(kernels):
    rules = gates.load(kernels.gates)
    assert rules.limits("3.9", "one", "small_mma") == {
        "registers": 128, "stack": 0, "load": 16, "instructions": ["mma"], "shared": 100,
    }  # fmt: skip
    assert rules.limits("3.9", "two", "small") is None
    assert rules.limits("3.6", "one", "small") is None


def test_what_a_vendor_counts_what_must_be_absent_and_occupancy_are_limits():
    limits = {"counts": {"spills": 1, "odd": 0}, "absent": ["trap"], "occupancy": 0.5}
    good = CodeFacts(64, 0, counts={"spills": 1}, instructions={"mma": 2}, occupancy=0.5)
    assert list(gates.breaches(good, limits)) == []
    assert list(gates.breaches(CodeFacts(64, 0), limits)) == []
    bad = CodeFacts(64, 0, counts={"spills": 2}, instructions={"trap": 3}, occupancy=0.25)
    assert list(gates.breaches(bad, limits)) == [
        "3 trap in its code, none is right", "spills 2, at most 1",
        "occupancy 0.25, at least 0.50",
    ]  # fmt: skip
    assert bad.to_json()["counts"] == {"spills": 2}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "schema is 2"),
        ("one = 100", 'one = "100"', "[shared] is no table of bytes"),
        ("registers = 64", 'registers = "64"', "gate 1: registers is '64', no int"),
        ("load = 16", "loads = 16", "gate 1: unknown loads"),
        ("load = 16", "counts = 16", "gate 1: counts is 16, no dict"),
        ("load = 16", "occupancy = 1", "gate 1: occupancy is 1, no float"),
        ('variants = ["small_mma"]', "", "gate 2 has no variants"),
        ("[shared]", "[shared", "cannot be read"),
    ],
)
def test_a_file_of_gates_that_means_something_else_is_refused(tmp_path, old, new, said):
    assert old in TEXT
    path = tmp_path / "gates.toml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        gates.load(path)
    assert said in str(caught.value)


def test_a_name_of_a_variant_stands_once(kernels, monkeypatch):
    one = tuned_kernels.Variant(threads=1, shared=0)
    monkeypatch.setattr(tuned_kernels, "variants", lambda arch: iter([("a", one), ("a", one)]))
    with pytest.raises(DeclarationError, match="gives a twice"):
        kernels.variants("one")
