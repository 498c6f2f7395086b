"""Views of a report: schema, JUnit, badge, difference, merging, and commands over them."""

from __future__ import annotations

import json
from datetime import date
from importlib.resources import files
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from click.testing import CliRunner

from trivet_conformance.cli.program import main
from trivet_conformance.report import lines, stored
from trivet_conformance.report.badge import GREEN, GREY, RED, badge, stale
from trivet_conformance.report.compare import compare
from trivet_conformance.report.errors import ReportError, ShardsDiffer
from trivet_conformance.report.junit import to_junit
from trivet_conformance.report.merging import merge
from trivet_conformance.report.page import page
from trivet_conformance.result import Finding, Result, Status

DAY = date(2026, 11, 30)


def result(case, status=Status.PASS, margin=0.25, reason="", plugin="acme"):
    finding = Finding(status, reason, margin, {"dims": {"tokens": 3}}, power=4)
    return Result("value", "rms_norm", "acme/vec", case, "float32", finding, 7, plugin, "hardware")


def report(folder, *results, close=True, plugin="acme", date="2026-11-02T10:00:00Z", **head):
    device = {"kind": "acme", "name": "Acme 1", "execution": "hardware"}
    first = lines.head(plugin, seed=7, device=device, **head) | {"date": date}
    with lines.Writer(folder, first) as writer:
        for one in results:
            writer.add(one)
    if close:
        lines.close(folder, 1.0)
    return stored.load(folder)


def test_every_line_fits_the_published_schema(tmp_path):
    text = files("trivet_conformance").joinpath("report", "schema.json").read_text("utf-8")
    schema = json.loads(text)
    validator = jsonschema.Draft202012Validator(schema)
    found = report(tmp_path, result("a"), *(result(s.value, s) for s in Status), mode="certify")
    for row in lines.read(tmp_path):
        validator.validate(row)
    broken = {**found.rows[1], "status": "fine"}
    assert not validator.is_valid(broken)
    assert not validator.is_valid({k: v for k, v in found.rows[0].items() if k != "suite"})


def test_the_head_knows_the_commit_of_an_editable_plugin():
    found = lines.head("cpu", seed=0, device={"kind": "cpu", "execution": "hardware"})
    assert found["plugin_distribution"]["name"] == "trivet-cpu"
    assert found["mode"] == "full"
    assert lines.head("none-such", seed=0, device={})["plugin_distribution"] == {}


def test_junit_keeps_statuses_apart(tmp_path):
    results = [result(s.value, s, reason="why \x00 <so>") for s in Status]
    suite = parsed(to_junit(report(tmp_path, *results).rows)).find("testsuite")
    tags = {c.get("name"): [child.tag for child in c] for c in suite.iter("testcase")}
    assert tags["pass"] == tags["refused_ok"] == []
    for name in ("not_run", "not_supported", "waived"):
        assert tags[name] == ["skipped"]
    for name in ("error", "crash", "timeout"):
        assert tags[name] == ["error"]
    for name in ("fail", "xpass", "flaky"):
        assert tags[name] == ["failure"]
    assert (suite.get("tests"), suite.get("skipped")) == ("11", "3")
    assert (suite.get("failures"), suite.get("errors")) == ("3", "3")
    skipped = suite.find("testcase[@name='not_run']/skipped")
    assert skipped.get("message") == "not_run: why \ufffd <so>"


def parsed(text):
    return ET.fromstring(text)  # noqa: S314 - made by the kit a moment ago


def colour(svg):
    return next(parsed(svg).iter("{http://www.w3.org/2000/svg}rect")).get("fill")


def test_a_claim_that_holds_is_green_for_180_days(tmp_path, monkeypatch):
    held = SimpleNamespace(holds=True, suite="1.0")
    monkeypatch.setattr("trivet_conformance.report.badge.claim", lambda *_: held)
    found = report(tmp_path, result("a"), mode="certify", profile="inference-dense", level="L0")
    svg = badge(found, today=DAY)
    assert colour(svg) == GREEN
    title = parsed(svg).get("aria-label")
    assert title == "trivet L0 | acme | suite 1.0 | 2026-11 | hardware"
    old = badge(found, today=date(2027, 5, 2))
    assert colour(old) == GREY
    assert "stale" in old


@pytest.mark.parametrize("mode", ["quick", "full", "certify"])
def test_a_run_that_fails_is_never_green(tmp_path, mode):
    head = {"mode": mode, "profile": "inference-dense", "level": "L0"}
    assert colour(badge(report(tmp_path, result("a", Status.FAIL), **head), today=DAY)) == RED
    assert colour(badge(report(tmp_path, result("a"), close=False, **head), today=DAY)) == RED


def test_a_run_without_a_claim_is_grey_and_names_are_escaped(tmp_path):
    name = '<script>"&'
    found = report(tmp_path, result("a"), result("b", Status.WAIVED), plugin=name, mode="quick")
    svg = badge(found, today=DAY)
    assert colour(svg) == GREY
    assert "<script>" not in svg
    assert parsed(svg).get("aria-label").split(" | ")[1] == name
    assert "1 waived" in svg


def test_a_badge_tells_whether_it_is_out_of_date(tmp_path):
    path = tmp_path / "b.svg"
    path.write_text(badge(report(tmp_path, result("a")), today=DAY))
    assert stale(path, today=DAY) == ""
    assert "days old" in stale(path, today=date(2027, 5, 2))
    path.write_text("<svg/>")
    with pytest.raises(ReportError, match="no date"):
        stale(path)


def test_a_difference_names_what_got_worse(tmp_path):
    before = report(
        tmp_path / "a",
        result("same"), result("broke"), result("moved", margin=0.1), result("gone"),
        result("mended", Status.FAIL), result("lost"),
    )  # fmt: skip
    after = report(
        tmp_path / "b",
        result("same", margin=0.4), result("broke", Status.CRASH, reason="died"),
        result("moved", margin=0.4), result("mended"), result("new"),
        result("lost", Status.NOT_RUN),
    )  # fmt: skip
    found, start = compare(before, after), "value/rms_norm/acme/vec/"
    assert found.failing == (start + "broke",)
    assert found.fixed == (start + "mended",)
    assert found.lost == (start + "lost",)
    assert found.margins == ((start + "moved", 0.1, 0.4),)
    assert (found.only_before, found.only_after) == ((start + "gone",), (start + "new",))
    assert found.worse
    assert not compare(before, before).worse


def test_runs_that_were_asked_differently_are_compared_where_both_answer(tmp_path):
    whole = report(tmp_path / "a", result("same"), result("other"), mode="certify", level="L1")
    quick = report(
        tmp_path / "b", result("same"), result("new", Status.FAIL, reason="no"), mode="quick"
    )
    found = compare(quick, whole)
    assert not found.worse
    assert found.failing == ()
    assert found.remark == (
        "the runs differ in mode (quick, then certify), level (none, then L1): "
        "compared in the 1 check of both"
    )
    assert found.remark.partition(":")[0] in page(whole, quick)
    assert not compare(whole, quick).worse  # a failure that only one of them could meet
    worse = report(tmp_path / "c", result("same", Status.FAIL), mode="quick")
    assert compare(whole, worse).worse
    assert compare(whole, whole).remark == ""
    done = CliRunner().invoke(main, ["diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 0
    assert "the runs differ in mode" in done.output


def test_shards_become_one_run(tmp_path):
    one = report(tmp_path / "1", result("a"), result("b"), shard=(1, 2))
    two = report(tmp_path / "2", result("b", Status.FAIL, reason="no"), result("c"), shard=(2, 2))
    head, *rows = merge([one, two])
    assert head["shard"] == [1, 1]
    assert [r["status"] for r in rows] == ["pass", "flaky", "pass"]
    assert rows[1]["reason"] == "pass in one report, fail in another: no"


def test_what_is_not_one_run_is_not_merged(tmp_path):
    one = report(tmp_path / "1", result("a"), shard=(1, 3))
    other = report(tmp_path / "2", result("b"), shard=(2, 3), mode="quick")
    with pytest.raises(ShardsDiffer, match="mode: 'full', 'quick'"):
        merge([one, other])
    with pytest.raises(ShardsDiffer, match="shard 2/3, 3/3 is missing"):
        merge([one])
    cut = report(tmp_path / "3", result("b"), shard=(2, 3), close=False)
    with pytest.raises(ShardsDiffer, match="cut short"):
        merge([one, cut])


def test_a_run_that_was_interrupted_is_cut_although_it_has_a_summary(tmp_path):
    folder = tmp_path / "r"
    report(folder, result("a"))
    assert stored.load(folder).ok
    lines.close(folder, 1.0, finished=False)
    assert stored.load(folder).cut
    assert not stored.load(folder).ok


def test_loading_alone_shows_nothing_of_an_implementation():
    row = {"kind": "result", "status": "pass", "family": "load"}
    assert not lines.in_order({}, [row])
    assert lines.in_order({"level": "L0"}, [row])
    assert lines.in_order({}, [row, row | {"family": "value"}])


def test_the_commands_speak_through_their_exit_status(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    report(a, result("x"))
    report(b, result("x", Status.FAIL, reason="no"))

    def call(*words):
        return CliRunner().invoke(main, [str(w) for w in words])

    assert call("diff", a, a).exit_code == 0
    worse = call("diff", a, b, "--json")
    assert worse.exit_code == 1
    assert json.loads(worse.output)["new_failures"][0]["reason"] == "no"
    whole = tmp_path / "c"
    assert call("merge", a, a, "-o", whole).exit_code == 0
    assert call("merge", a, b, "-o", whole).exit_code == 1
    assert stored.load(whole).counts["flaky"] == 1
    assert call("badge", b, "-o", tmp_path / "b.svg").exit_code == 0
    assert call("badge", tmp_path / "b.svg", "--check").exit_code in {0, 1}
    assert call("html", b, "--against", a).exit_code == 0
    assert (b / "report.html").is_file()
    missing = call("html", tmp_path / "nowhere")
    assert missing.exit_code == 2
    assert "no report.jsonl" in missing.output
