"""The command: exit statuses, JSON, and reports on disk."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from click.testing import CliRunner

from trivet_conformance.cli import program as cli
from trivet_conformance.cli import selftest as cli_selftest
from trivet_conformance.selftest import collective, hostile, memory
from trivet_conformance.selftest.selftest import Outcome


def call(*arguments):
    return CliRunner().invoke(cli.main, [str(a) for a in arguments])


def test_a_run_writes_its_report_and_ends_with_0(tmp_path):
    done = call("run", "--plugin", "reference", "--op", "embedding", "--quick", "--dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert "embedding" in done.stdout
    assert "quick mode" in done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ok"]
    assert summary["run"]["mode"] == "quick"
    assert (tmp_path / "report.jsonl").exists()


def test_json_is_the_summary_and_nothing_else(tmp_path):
    done = call("run", "--plugin", "reference", "--op", "embedding", "--family", "meta", "--quick",
                "--json", "--dir", tmp_path)  # fmt: skip
    summary = json.loads(done.stdout)
    assert list(summary["operators"]["embedding"]["reference"]) == ["meta"]


def test_a_case_that_does_not_exist_is_no_success(tmp_path):
    done = call("run", "--plugin", "reference", "--op", "embedding", "--case", "value/embedding/x",
                "--dir", tmp_path)  # fmt: skip
    assert done.exit_code == 1
    assert "nothing was checked" in done.stdout


def test_the_repro_command_repeats_a_check(tmp_path):
    call("run", "--plugin", "reference", "--op", "embedding", "--family", "layout", "--seed", "3",
         "--dir", tmp_path)  # fmt: skip
    rows = [json.loads(r) for r in (tmp_path / "report.jsonl").read_text().splitlines()]
    chosen = next(r for r in rows if r["kind"] == "result" and r["family"] == "layout")
    words = chosen["repro"].split()[1:]
    done = call(*words, "--json", "--dir", tmp_path / "again")
    assert json.loads(done.stdout)["counts"][chosen["status"]] == 1


def test_waivers_and_junit_belong_to_a_run(tmp_path):
    words = ["run", "--plugin", "reference", "--op", "embedding", "--family", "meta", "--quick",
             "--in-process", "--dir", tmp_path]  # fmt: skip
    assert call(*words, "--junit", tmp_path / "junit.xml").exit_code == 0
    assert "<testsuite" in (tmp_path / "junit.xml").read_text()
    rows = [json.loads(r) for r in (tmp_path / "report.jsonl").read_text().splitlines()]
    passed = next(r["id"] for r in rows if r.get("status") == "pass")
    today = datetime.now(UTC).date()
    file = tmp_path / "waivers.toml"
    file.write_text(
        f"[[waiver]]\nid = {json.dumps(passed)}\nkind = 'xfail'\nreason = 'known'\n"
        "issue = 'https://example.org/1'\nsuite = '>=1'\nowner = 'me'\n"
        f"granted = {today}\nexpires = {today + timedelta(days=30)}\n"
    )
    done = call(*words, "--waivers", file, "--json")
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["counts"]["xpass"] == 1
    file.write_text(file.read_text().replace("owner = 'me'\n", ""))
    refused = call(*words, "--waivers", file)
    assert refused.exit_code == 1
    assert "owner" in refused.stderr


def test_an_unknown_plugin_or_operator_is_told_in_one_line(tmp_path):
    for words in (["--plugin", "nobody"], ["--plugin", "reference", "--op", "rms_nom"]):
        done = call("run", *words, "--dir", tmp_path)
        assert done.exit_code == 1
        assert done.stderr.strip().startswith("Error: ")


def test_list_says_what_is_claimed_and_runs_nothing():
    done = call("list", "--plugin", "reference", "--json")
    claims = json.loads(done.stdout)
    row = next(r for r in claims["implementations"] if r["operator"] == "rms_norm")
    assert row["form"] == "functional"
    assert row["dtypes"][0] == "float32"
    assert {"value", "meta", "alias", "layout", "special"} <= set(claims["families"])
    assert call("list", "--plugin", "reference", "--op", "linear").exit_code == 0


def test_selftest_fails_when_a_variant_is_judged_wrongly(monkeypatch):
    def judged(*, quick, seed):
        yield Outcome("zeros", "silu_and_mul", "value", ("value",), ())
        yield Outcome("plain", "silu_and_mul", "", ("value",), ("value",), {"value": "why"})

    monkeypatch.setattr(cli_selftest, "judge_variants", judged)
    monkeypatch.setattr(memory, "judge_memory", lambda **_: iter(()))
    monkeypatch.setattr(collective, "judge_comm", lambda **_: iter(()))
    done = call("selftest", "--quick")
    assert done.exit_code == 1
    assert "2 wrong" in done.stdout
    assert "why" in done.stdout
    assert json.loads(call("selftest", "--quick", "--json").stdout)["ok"] is False


def test_selftest_fails_when_a_hostile_plugin_is_not_told(monkeypatch):
    good = Outcome("plain", "silu_and_mul", "", ("value",), ())
    missed = Outcome("crashes", "embedding", "value", ("value",), ())
    monkeypatch.setattr(cli_selftest, "judge_variants", lambda **_: iter([good]))
    monkeypatch.setattr(memory, "judge_memory", lambda **_: iter(()))
    monkeypatch.setattr(collective, "judge_comm", lambda **_: iter(()))
    monkeypatch.setattr(hostile, "judge_hostile", lambda **_: iter([missed]))
    done = call("selftest", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["hostile"], found["hostile_reported"]) == (1, 0)


def test_selftest_fails_when_a_memory_is_judged_wrongly(monkeypatch):
    good = Outcome("plain", "silu_and_mul", "", ("value",), ())
    missed = Outcome("same_place_twice", "memory", "memory.allocate", ("memory.allocate",), ())
    monkeypatch.setattr(cli_selftest, "judge_variants", lambda **_: iter([good]))
    monkeypatch.setattr(memory, "judge_memory", lambda **_: iter([missed]))
    monkeypatch.setattr(collective, "judge_comm", lambda **_: iter(()))
    done = call("selftest", "--quick")
    assert done.exit_code == 1
    assert "0 of 1 wrong memories killed" in done.stdout


def test_selftest_fails_when_collectives_are_judged_wrongly(monkeypatch):
    good = Outcome("plain", "silu_and_mul", "", ("value",), ())
    missed = Outcome("deaf_to_abort", "collectives", "comm.errors", ("comm.errors",), ())
    monkeypatch.setattr(cli_selftest, "judge_variants", lambda **_: iter([good]))
    monkeypatch.setattr(memory, "judge_memory", lambda **_: iter(()))
    monkeypatch.setattr(collective, "judge_comm", lambda **_: iter([missed]))
    done = call("selftest", "--quick")
    assert done.exit_code == 1
    assert "0 of 1 wrong collectives killed" in done.stdout
