"""Waivers: strict files, honest verdicts, and files made from reports."""

from __future__ import annotations

from datetime import date

import pytest
from test_report_views import report, result

from trivet_conformance.report.errors import WaiverError
from trivet_conformance.report.expect import expect
from trivet_conformance.report.waivers import load
from trivet_conformance.result import Status

DAY = date(2026, 11, 30)
START = "value/rms_norm/acme/vec/"
GOOD = {
    "id": f'"{START}a"', "kind": '"xfail"', "reason": '"rounds twice"', "owner": '"a@b"',
    "issue": '"https://example.org/1"', "suite": '">=1.0"', "granted": "2026-11-01",
    "expires": "2027-03-01",
}  # fmt: skip


def written(tmp_path, *entries):
    path = tmp_path / "w.toml"
    tables = ("\n".join(f"{k} = {v}" for k, v in e.items() if v) for e in entries)
    path.write_text("\n".join(f"[[waiver]]\n{t}" for t in tables))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"owner": ""}, "owner is missing"),
        ({"ownr": '"x"'}, "unknown key ownr"),
        ({"reason": '"TODO"'}, "reason still says TODO"),
        ({"reason": '" "'}, "says something"),
        ({"kind": '"ignore"'}, "kind 'ignore' is none of"),
        ({"id": '"*"'}, "one \\*"),
        ({"id": '"a*b"'}, "one \\*"),
        ({"issue": '"later"'}, "must be a link"),
        ({"suite": '"new"'}, "no specifier"),
        ({"expires": "2027-11-01"}, "within 180 days"),
        ({"expires": "2026-11-29"}, "expired on 2026-11-29"),
        ({"granted": "2026-12-24"}, "a day to come"),
        ({"granted": '"today"'}, "must be a date"),
        ({"devices": '"acme"'}, "list of texts"),
    ],
)
def test_an_entry_that_is_not_in_force_is_named(tmp_path, change, said):
    path = written(tmp_path, {**GOOD, **change})
    with pytest.raises(WaiverError, match=said) as caught:
        load(path, today=DAY)
    assert f"{path}, entry 1" in str(caught.value)


def test_a_file_that_is_no_waiver_file_is_refused(tmp_path):
    path = tmp_path / "w.toml"
    for text in ("waiver = 3", "other = 1", "[[waiver"):
        path.write_text(text)
        with pytest.raises(WaiverError, match=r"w\.toml"):
            load(path, today=DAY)
    with pytest.raises(WaiverError, match="twice"):
        load(written(tmp_path, GOOD, GOOD), today=DAY)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("xfail", Status.FAIL, Status.WAIVED),
        ("xfail", Status.CRASH, Status.WAIVED),
        ("xfail", Status.PASS, Status.XPASS),
        ("xfail", Status.REFUSED_OK, Status.XPASS),
        ("xfail", Status.ERROR, Status.ERROR),
        ("xfail", Status.NOT_RUN, Status.NOT_RUN),
        ("skip", Status.TIMEOUT, Status.WAIVED),
        ("skip", Status.FAIL, Status.FAIL),
    ],
)
def test_a_waiver_covers_its_kind_only(tmp_path, kind, before, after):
    waivers = load(written(tmp_path, {**GOOD, "kind": f'"{kind}"'}), today=DAY)
    one = waivers.judge(result("a", before, reason="off"))
    assert one.status is after
    if after is Status.WAIVED:
        assert "rounds twice" in one.finding.reason
        assert "off" in one.finding.reason
    waivers.check_all_used()


def test_a_star_covers_a_start_and_an_exact_id_goes_first(tmp_path):
    star = {**GOOD, "id": f'"{START}a*"', "reason": '"all of them"'}
    waivers = load(written(tmp_path, star, GOOD), today=DAY)
    assert waivers.find(START + "ab").reason == "all of them"
    assert waivers.find(START + "a").reason == "rounds twice"
    assert waivers.find(START + "b") is None


def test_a_waiver_that_matches_nothing_is_an_error(tmp_path):
    waivers = load(written(tmp_path, GOOD), today=DAY)
    waivers.judge(result("b", Status.FAIL))
    assert waivers.unmatched() == (START + "a",)
    with pytest.raises(WaiverError, match="no check has the id"):
        waivers.check_all_used()


@pytest.mark.parametrize(
    ("change", "many"),
    [
        ({"devices": '["acme"]'}, 1),
        ({"devices": '["acme:gen2"]'}, 1),
        ({"devices": '["acme:gen1", "other"]'}, 0),
        ({"suite": '">=2"'}, 0),
    ],
)
def test_a_waiver_is_for_its_devices_and_suites(tmp_path, change, many):
    device = {"kind": "acme", "arch": ["gen2"]}
    found = load(written(tmp_path, {**GOOD, **change}), device=device, suite="1.0", today=DAY)
    assert len(found.entries) == many


def test_expect_lists_failures_and_leaves_the_words_to_people(tmp_path):
    path = tmp_path / "new.toml"
    failing = report(tmp_path / "r", result("a", Status.FAIL), result('q"\n', Status.CRASH))
    found = expect(failing, path, today=DAY)
    assert found.new == (START + "a", START + 'q"\n')
    path.write_text(found.text)
    with pytest.raises(WaiverError, match="TODO"):
        load(path, today=DAY)
    words = {"reason": "known", "issue": "https://example.org/2", "owner": "c@d"}
    text = found.text
    for key, value in words.items():
        text = text.replace(f'{key} = "TODO"', f'{key} = "{value}"')
    path.write_text(text)
    waivers = load(path, device={"kind": "acme"}, today=DAY)
    for name, status in (("a", Status.FAIL), ('q"\n', Status.CRASH)):
        assert waivers.judge(result(name, status)).status is Status.WAIVED


def test_expect_keeps_words_and_drops_what_passes(tmp_path):
    star = {**GOOD, "id": f'"{START}s*"'}
    unseen = {**GOOD, "id": f'"{START}other"'}
    gone = {**GOOD, "id": f'"{START}gone"'}
    path = written(tmp_path, GOOD, star, unseen, gone)
    now = report(
        tmp_path / "r",
        result("a", Status.WAIVED), result("s1"), result("s2", Status.FAIL), result("gone"),
        result("x", Status.FAIL),
    )  # fmt: skip
    found = expect(now, path, today=DAY)
    assert found.kept == (START + "a",)
    assert found.dropped == (START + "s*", START + "gone")
    assert found.unseen == (START + "other",)
    assert found.new == (START + "x",)
    assert f'id = "{START}s2"' in found.text
    assert found.text.count("rounds twice") == 3
