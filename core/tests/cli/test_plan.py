from __future__ import annotations

import json

import pytest

from trivet.cli import plan


def test_sites_steps_and_digest(cli, acme, plan_file):
    found = cli.json("plan", str(plan_file))
    assert list(found) == list(plan.KEYS)
    assert len(found["digest"]) == 16
    steps = {name: site["steps"] for name, site in found["sites"].items()}
    assert steps["norm"] == [{"when": [], "providers": ["acme/vec"]}]
    assert steps["few"] == [{"when": [], "providers": ["acme/small"]}]
    assert steps["act"] == [
        {"when": [], "providers": ["acme/small", "reference"]},
        {"when": ["between(tokens, 0, 4)"], "providers": ["acme/small"]},
        {"when": ["not between(tokens, 0, 4)"], "providers": ["reference"]},
    ]
    assert found["sites"]["act"]["variables"] == {"tokens": "rows"}
    assert found["lock"] == {"file": None, "agrees": None, "fields": [], "overrides": {}}


def test_the_text_shows_what_each_step_runs(cli, acme, plan_file):
    text = cli("plan", str(plan_file)).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "not between(tokens, 0, 4)  reference" in text
    assert "tokens is rows" in text
    assert "digest" in text


def test_toml_gives_the_same_plan(cli, acme, plan_file):
    lines = []
    for name, site in json.loads(plan_file.read_text()).items():
        lines += [f"[{name}]", f"op = {json.dumps(site['op'])}", f"[{name}.facts]"]
        lines += [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in site["facts"].items()]
    toml = plan_file.with_suffix(".toml")
    toml.write_text("\n".join(lines))
    assert cli.json("plan", str(toml))["digest"] == cli.json("plan", str(plan_file))["digest"]


def test_a_lock_is_saved_and_agrees(cli, acme, plan_file):
    lock = str(plan_file.with_name("lock.json"))
    saved = cli.json("plan", str(plan_file), "--save", lock)
    assert saved["saved"] == lock
    found = cli.json("plan", str(plan_file), "--lock", lock)
    assert found["lock"]["agrees"] is True
    assert found["digest"] == saved["digest"]
    assert "agrees" in cli("plan", str(plan_file), "--lock", lock).stdout


def test_a_lock_that_does_not_fit_lists_fields_with_exit_code_1(cli, acme, plan_file):
    lock = plan_file.with_name("lock.json")
    cli("plan", str(plan_file), "--save", str(lock))
    sites = json.loads(plan_file.read_text())
    sites["norm"]["facts"]["hidden"] = 584
    plan_file.write_text(json.dumps(sites))
    found = cli.json("plan", str(plan_file), "--lock", str(lock), code=1)
    assert found["lock"]["agrees"] is False
    assert "sites.norm.facts.hidden: locked 576, now 584" in found["lock"]["fields"]
    assert found["digest"] == ""
    result = cli("plan", str(plan_file), "--lock", str(lock), code=1)
    assert "sites.norm.facts.hidden: locked 576, now 584" in result.stderr
    assert result.stdout == ""


def test_the_lock_of_the_environment_counts(cli, acme, plan_file, monkeypatch):
    lock = str(plan_file.with_name("lock.json"))
    cli("plan", str(plan_file), "--save", lock)
    monkeypatch.setenv("TRIVET_LOCK", lock)
    said = cli.json("plan", str(plan_file))["lock"]
    assert said == {"file": lock, "agrees": True, "fields": [], "overrides": {}}


def test_order_lists_that_a_lock_overrides_are_said(cli, acme, plan_file):
    lock = str(plan_file.with_name("lock.json"))
    cli("plan", str(plan_file), "--save", lock)
    plan_file.with_name("trivet.toml").write_text('[providers]\nrms_norm = ["reference"]\n')
    overrides = cli.json("plan", str(plan_file), "--lock", lock)["lock"]["overrides"]
    assert list(overrides) == ["norm"]
    assert overrides["norm"].endswith("trivet.toml [providers] rms_norm")
    text = " ".join(cli("plan", str(plan_file), "--lock", lock).stdout.split())
    assert "the lock overrides" in text
    assert "(at norm)" in text


def test_trivet_lock_names_the_options_that_were_meant(cli):
    text = " ".join(cli("lock", code=2).stderr.split())
    assert "no command 'lock'; did you mean trivet plan FILE --save LOCK" in text


def test_nothing_that_may_run_is_exit_code_1(cli, acme, plan_file, monkeypatch):
    monkeypatch.setenv("TRIVET_FORBID", "rms_norm=acme/vec,reference")
    assert "no implementation of rms_norm may run" in cli("plan", str(plan_file), code=1).stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"n": {"op": "rms_nrm"}}', "no operator 'rms_nrm'"),
        ("a.json", '{"n": {"op": "rms_norm", "facts": {"hiden": 4}}}', "fact 'hiden'"),
        ("a.json", '{"n": {"op": "rms_norm", "fact": {}}}', "site 'n': unknown key 'fact'"),
        ("a.json", '{"n": {"facts": {}}}', "site 'n' names no operator"),
        ("a.json", '{"n": {"op": "rms_norm", "facts": {"hidden": [1, 2, 3]}}}', "[1, 2, 3]"),
        ("a.json", '{"n": {"op": "rms_norm", "facts": {"hidden": [8, 1]}}}', "empty range"),
        ("a.json", '{"n": {"op": "rms_norm", "facts": []}}', "facts are no table"),
        ("a.json", "{}", "has no site"),
        ("a.json", "[1]", "holds no table of sites"),
        ("a.json", "{", "cannot be read"),
        ("a.toml", "x =", "cannot be read"),
        ("a.json", '{"at": {"op": "rms_norm"}}', "a site may not be called 'at'"),
        ("a.yaml", "", "sites are read from .json or .toml files"),
    ],
)
def test_a_wrong_file_is_one_message(cli, acme, tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    assert message in cli("plan", str(path), code=2).stderr


def test_no_code_is_run(cli, acme, tmp_path):
    path = tmp_path / "sites.py"
    path.write_text("raise SystemExit(9)\ndef make(): raise SystemExit(9)\n")
    for target in (path, f"{path}:make"):
        assert "code is not run" in cli("plan", str(target), code=2).stderr


def test_files_that_cannot_be_read_or_written_are_named(cli, acme, plan_file):
    assert "absent.json cannot be read" in cli("plan", "absent.json", code=2).stderr
    result = cli("plan", str(plan_file), "--save", "absent/lock.json", code=2)
    assert "absent/lock.json cannot be written" in result.stderr
    assert "cannot be read" in cli("plan", str(plan_file), "--lock", "absent", code=2).stderr
