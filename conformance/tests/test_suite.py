"""The suite: levels, profiles, frozen lists, and what a report may claim."""

from __future__ import annotations

import itertools
import json

import click
import pytest
from click.testing import CliRunner

from trivet.catalogue import operators
from trivet_conformance.cli import claiming, listing
from trivet_conformance.cli.program import main
from trivet_conformance.collective import comm_for
from trivet_conformance.families import FAMILIES, LEVEL_OF
from trivet_conformance.memory import memory_for
from trivet_conformance.result import Status
from trivet_conformance.running.session import Options
from trivet_conformance.subject.subject import references
from trivet_conformance.suite import LEVELS, PROFILES, SUITE, claim, families_for, generate, profile
from trivet_conformance.suite.claims import Claim, digest, mustpass, mustpass_text

HEAD = {
    "kind": "run",
    "mode": "certify",
    "seed": 3,
    "device": {"torch_type": "cpu"},
    "implementations": 6,
}


def rows(name="inference-dense", level="L2", *, head=HEAD, **changed):
    """A report that satisfies a list, with some lines' statuses changed."""
    found = [head]
    for line in mustpass(name, level):
        family, op, rest = line.split("/", 2)
        dtype = rest.split(":")[1] if family == "model" else rest
        status = changed.get(line.replace("/", "_").replace("-", "_"), Status.PASS)
        case = rest if family == "model" else f"functional:{dtype}:x"
        found.append(
            {"kind": "result", "id": f"{family}/{op}/acme/vec/{case}", "family": family,
             "operator": op, "provider": "acme/vec", "status": status, "dtype": dtype.strip("-")}
        )  # fmt: skip
    return found


def test_levels_grow_and_the_last_has_every_family():
    sizes = [len(families_for(level)) for level in LEVELS]
    assert sizes == sorted(sizes)
    assert families_for("L0") == ()
    assert set(families_for("L3")) == set(FAMILIES)
    assert {"value", "meta", "alias", "model"} <= set(families_for("L1"))
    assert "layout" not in families_for("L1")
    assert "layout" in families_for("L2")
    assert set(LEVEL_OF.values()) <= set(LEVELS)
    with pytest.raises(ValueError, match="no level 'L9'; there are L0"):
        families_for("L9")


def test_profiles_name_operators_that_exist_with_every_size_of_a_call():
    known = operators()
    assert {"inference-dense", "compute-only"} <= set(PROFILES)
    for own in PROFILES.values():
        assert not set(own.mandatory) & set(own.optional)
        assert set(own.mandatory) | set(own.optional) <= set(known)
        assert set(own.mandatory) <= {c.operator for c in own.calls}
        for call in own.calls:
            op = known[call.operator]
            names = {n for size in op.cases.sizes for n in size}
            assert set(dict(call.dims)) == names, call
            assert set(dict(call.scalars)) <= set(op.scalars), call
    with pytest.raises(ValueError, match="no profile 'all'"):
        profile("all")


def test_a_call_has_one_meaning_in_all_profiles():
    seen = {}
    for own in PROFILES.values():
        for call in own.calls:
            assert seen.setdefault((call.operator, call.id), call) == call


def test_stored_lists_have_the_recorded_hashes():
    for folder in sorted(generate.FOLDER.iterdir()):
        recorded = dict(
            reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
        )
        stored = {f.name: f.read_text(encoding="utf-8") for f in folder.glob("*.txt")}
        assert {name: digest(text) for name, text in stored.items()} == recorded


def test_the_current_lists_are_what_the_suite_can_ask():
    folder = generate.FOLDER / SUITE
    made = generate.lists()
    stored = {f.name: f.read_text(encoding="utf-8") for f in folder.glob("*.txt")}
    assert stored == made, "families or profiles changed: trivet-conformance mustpass"
    assert all(made.values())


def test_a_released_suite_is_not_written_again(monkeypatch):
    monkeypatch.setattr(generate, "RELEASED", frozenset({SUITE}))
    with pytest.raises(ValueError, match="is released"):
        generate.write()


def test_a_higher_level_asks_for_everything_below():
    for name in PROFILES:
        lists = [set(mustpass(name, level)) for level in LEVELS]
        assert all(low <= high for low, high in itertools.pairwise(lists))
        assert lists[0] == set()
        assert lists[1] < lists[2]


def test_a_report_that_satisfies_every_line_holds():
    found = claim(rows(), "inference-dense", "L2")
    assert found.holds, found
    assert found.hash == digest(mustpass_text("inference-dense", "L2"))
    assert "linear/float32" in found.optional_not_claimed
    assert "rms_norm/float32" not in found.optional_not_claimed
    assert "certified: suite" in claiming.told(found)
    assert claim(rows(), "inference-dense", "L1").holds
    assert not claim(rows(level="L1"), "inference-dense", "L2").holds


@pytest.mark.parametrize("status", [Status.NOT_SUPPORTED, Status.NOT_RUN, Status.WAIVED])
def test_a_cell_without_a_pass_is_missing(status):
    found = claim(rows(value_rms_norm_bfloat16=status), "inference-dense", "L1")
    assert not found.holds
    assert found.missing == ("value/rms_norm/bfloat16",)
    assert "not satisfied: value/rms_norm/bfloat16" in claiming.told(found)


def test_one_provider_must_pass_all_of_a_cell():
    base = rows(value_rms_norm_bfloat16=Status.WAIVED)
    (other,) = [r for r in base if r["kind"] == "result" and r["status"] == Status.WAIVED]
    good = {**other, "provider": "acme/other", "status": Status.PASS}
    assert claim([*base, good], "inference-dense", "L1").holds
    split = {**other, "status": Status.PASS}
    assert not claim([*base, split], "inference-dense", "L1").holds


@pytest.mark.parametrize("status", ["fail", "error", "crash", "timeout", "flaky", "xpass"])
def test_anything_that_fails_ends_a_claim_even_outside_the_list(status):
    extra = {**rows()[1], "id": "value/linear/acme/vec/x", "operator": "linear", "status": status}
    found = claim([*rows(), extra], "inference-dense", "L2")
    assert not found.holds
    assert found.failed == ("value/linear/acme/vec/x",)


def test_only_the_host_needs_no_streams():
    lines = [line for line in mustpass("inference-dense", "L2") if line.startswith("stream/")]
    assert lines
    without = [r for r in rows() if r.get("family") != "stream"]
    assert claim(without, "inference-dense", "L2").holds
    device = [{**HEAD, "device": {"torch_type": "cuda"}}, *without[1:]]
    assert claim(device, "inference-dense", "L2").missing == tuple(lines)


@pytest.mark.parametrize("mode", ["quick", "full", None])
def test_a_report_that_was_not_made_to_certify_does_not(mode):
    found = claim(rows(head={**HEAD, "mode": mode}), "inference-dense", "L1")
    assert not found.holds
    assert found.missing == ()
    assert "not certifiable" in found.why_not
    assert not claim(rows()[1:], "inference-dense", "L1").holds
    assert not claim(rows(head={"kind": "run", "mode": "certify"}), "inference-dense", "L1").holds


def test_the_lowest_level_wants_a_plugin_that_loads():
    assert claim([HEAD], "compute-only", "L0").holds
    assert not claim([{**HEAD, "implementations": 0}], "compute-only", "L0").holds
    refused = {**rows()[1], "family": "load", "status": Status.FAIL}
    assert not claim([HEAD, refused], "compute-only", "L0").holds


def test_a_run_certifies_on_disk_and_in_its_exit_status(tmp_path):
    words = ["run", "--plugin", "reference", "--profile", "compute-only", "--mode", "certify"]
    done = CliRunner().invoke(main, [*words, "--level", "L0", "--dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "certified: suite" in done.stdout
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["claim"]["holds"]
    assert found["ok"]
    done = CliRunner().invoke(main, [*words, "--level", "L1", "--op", "rms_norm"])
    assert done.exit_code == 2
    assert "leaves nothing out" in done.stderr


def test_options_that_leave_checks_out_certify_nothing():
    claiming.check("certify", "L1", "compute-only", {"--op": ()})
    claiming.check("full", "L1", None, {"--op": ("rms_norm",)})
    for words in (
        ("certify", None, "compute-only", {}),
        ("certify", "L1", None, {}),
        ("certify", "L1", "compute-only", {"--op": ("rms_norm",)}),
        ("full", "L1", "compute-only", {}),
    ):
        with pytest.raises(click.UsageError):
            claiming.check(*words)


def test_a_level_names_the_families_of_a_run(tmp_path):
    def chosen(**given):
        return Options("reference", tmp_path, **given)

    assert chosen(families=("value",)).chosen == ("value",)
    every = *families_for("L1"), *memory_for("L1"), *comm_for("L1")
    assert chosen(level="L1").chosen == every
    assert chosen(level="L1", families=("value", "layout")).chosen == ("value",)
    assert chosen(level="L0").loads_only
    assert not chosen().loads_only


def test_a_claim_holds_only_where_the_run_is_in_order(tmp_path, monkeypatch):
    good = Claim("1.0", "compute-only", "L1", True, (), (), (), "0" * 64, "")
    monkeypatch.setattr(claiming, "claim", lambda *_: good)
    monkeypatch.setattr(claiming.report, "read", lambda _: [])
    for ok in (True, False):
        made = claiming.with_claim(tmp_path, {"ok": ok}, "compute-only", "L1")
        assert made["ok"] is ok


def test_the_list_says_what_is_not_claimed():
    whole = listing.wanted(references(), "inference-dense", "L2")
    assert whole["claimed"] == whole["lines"]
    assert whole["not_claimed"] == []
    some = listing.wanted(references().only(["rms_norm"]), "inference-dense", "L1")
    assert "silu_and_mul/bfloat16" in some["not_claimed"]
    assert "rms_norm/bfloat16" not in some["not_claimed"]
    assert some["claimed"] < some["lines"]
