"""Reports: streamed lines, a derived summary, and what makes a run fail."""

from __future__ import annotations

import json

import pytest

from trivet_conformance.report import lines as report
from trivet_conformance.result import Finding, Result, Status


def result(status, *, family="value", margin=0.25, reason="") -> Result:
    finding = Finding(status, reason, margin, {"dims": {"tokens": 3}}, power=4)
    return Result(
        family, "rms_norm", "acme/vec", "out:x", "float32", finding, 7, "acme", "hardware"
    )


def head():
    return report.head("acme", seed=7, quick=False, device={"kind": "acme"})


def test_a_line_has_everything_that_repeats_the_check():
    line = result(Status.PASS).to_json()
    assert line["id"] == "value/rms_norm/acme/vec/out:x"
    assert line["margin"] == 0.25
    assert line["power"] == 4
    assert line["execution"] == "hardware"
    assert line["inputs"] == {"dims": {"tokens": 3}}
    assert line["repro"] == (
        "trivet-conformance run --plugin acme --seed 7 --case value/rms_norm/acme/vec/out:x"
    )


def test_results_are_on_disk_before_the_run_ends(tmp_path):
    with report.Writer(tmp_path / "new", head()) as writer:
        writer.add(result(Status.PASS))
        rows = report.read(tmp_path / "new")
        assert [r["kind"] for r in rows] == ["run", "result"]
        assert rows[0]["plugin"] == "acme"


def test_a_line_that_was_cut_short_does_not_lose_the_others(tmp_path):
    with report.Writer(tmp_path, head()) as writer:
        writer.add(result(Status.PASS))
    path = tmp_path / report.LINES
    path.write_text(path.read_text() + '{"kind": "res')
    assert len(report.read(tmp_path)) == 2


@pytest.mark.parametrize(
    ("statuses", "ok"),
    [
        ([Status.PASS, Status.NOT_SUPPORTED], True),
        ([Status.REFUSED_OK], True),
        ([Status.PASS, Status.FAIL], False),
        ([Status.PASS, Status.ERROR], False),
        ([Status.NOT_SUPPORTED, Status.NOT_RUN], False),
        ([], False),
    ],
)
def test_a_run_is_good_when_something_passed_and_nothing_is_wrong(tmp_path, statuses, ok):
    with report.Writer(tmp_path, head()) as writer:
        for status in statuses:
            writer.add(result(status))
    summary = report.close(tmp_path, 1.0)
    assert summary["ok"] is ok
    assert json.loads((tmp_path / report.SUMMARY).read_text()) == summary


def test_the_summary_counts_by_operator_provider_and_family(tmp_path):
    with report.Writer(tmp_path, head()) as writer:
        writer.add(result(Status.PASS, margin=0.1))
        writer.add(result(Status.PASS, margin=0.4))
        writer.add(result(Status.FAIL, family="meta", reason="wrong dtype"))
    summary = report.close(tmp_path, 1.0)
    row = summary["operators"]["rms_norm"]["acme/vec"]
    assert row["value"] == {"pass": 2, "margin": 0.4}
    assert row["meta"]["fail"] == 1
    assert summary["bad"][0]["reason"] == "wrong dtype"
    assert summary["counts"]["pass"] == 2


def test_a_margin_stays_between_nothing_and_all():
    assert result(Status.FAIL, margin=17.0).to_json()["margin"] == 1.0
