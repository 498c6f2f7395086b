"""``trivet-rocm verify-on-hardware`` without hardware: its steps, its file, missing peers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trivet_rocm import STATUS
from trivet_rocm.discovery import Finding, Obstacle, judge
from trivet_rocm.verify import benchmarks, checks, command, main, steps

DATA = Path(__file__).parent / "data"


@pytest.fixture
def machine(monkeypatch):
    """The command on the machine of a record."""

    def on(name):
        record = json.loads((DATA / f"{name}.json").read_text())
        monkeypatch.setattr(command, "gather", lambda: record)
        return record

    return on


def test_the_steps_are_listed_and_none_runs(machine, capsys, tmp_path):
    machine("rx7900xtx")
    assert main(["verify-on-hardware", "--list", "--quick", "--work", str(tmp_path / "w")]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "doctor", "checks", "code", "benchmarks", "kit",
    ]  # fmt: skip
    assert "--arch gfx1100" in told[2]
    assert "--level L2" in told[4]
    assert "--quick" in told[4]
    assert not (tmp_path / "w").exists()


def test_without_a_gpu_the_file_says_why(machine, tmp_path, capsys):
    machine("no_permission")
    out = tmp_path / "out.json"
    assert main(["verify-on-hardware", "--out", str(out), "--work", str(tmp_path / "w")]) == 2
    document = json.loads(out.read_text())
    assert document["status"] == STATUS
    assert document["steps"] == document["found"] == []
    assert document["reason"] in capsys.readouterr().err
    assert document["machine"]["kfd"]["nodes"][0]["unique_id"] == 1


def test_each_step_is_a_row_and_a_bad_one_is_the_status(machine, tmp_path, monkeypatch):
    machine("mi300x_x8")
    left = tmp_path / "left.json"

    def made(devices, work, *, quick):
        assert devices[0].arch[0] == "gfx942"
        python = sys.executable
        write = f"open({str(left)!r}, 'w').write('[1, 2]')"
        return [
            steps.Step("prints", (python, "-c", "print('{\"a\": 1}')")),
            steps.Step("leaves", (python, "-c", write), left),
            steps.Step("fails", (python, "-c", "raise SystemExit('no')")),
            steps.Step("hangs", (python, "-c", "import time; time.sleep(60)")),
        ]

    monkeypatch.setattr(command, "steps", made)
    out = tmp_path / "out.json"
    given = ["verify-on-hardware", "--out", str(out), "--work", str(tmp_path / "w")]
    assert main([*given, "--only", "prints", "--only", "leaves", "--only", "fails"]) == 1
    rows = {row["name"]: row for row in json.loads(out.read_text())["steps"]}
    assert {n: (r["word"], r["document"]) for n, r in rows.items()} == {
        "prints": ("passed", {"a": 1}), "leaves": ("passed", [1, 2]), "fails": ("failed", None),
    }  # fmt: skip
    assert rows["fails"]["error"].strip() == "no"
    assert main([*given, "--only", "prints"]) == 0
    assert main([*given, "--only", "hangs", "--seconds", "0.2"]) == 1
    assert json.loads(out.read_text())["steps"][0]["word"] == "cut"


def test_a_run_of_the_kit_goes_on(tmp_path):
    info = judge(json.loads((DATA / "mi210.json").read_text())).devices
    assert "--resume" not in steps.steps(info, tmp_path, quick=False)[-1].command
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit/report.jsonl").write_text("")
    assert "--resume" in steps.steps(info, tmp_path, quick=False)[-1].command
    assert Finding(obstacle=Obstacle.NO_DRIVER).devices == ()


def test_peers_that_are_missing_or_fail_are_rows_with_a_reason(monkeypatch):
    watch = SimpleNamespace(warm=lambda call: [3.0, 1.0, 2.0], cold=lambda call: [5.0])
    x = torch.ones(4)
    cell = benchmarks.Cell(
        "silu", "4", {"trivet": lambda: lambda: x * 2, "torch": lambda: lambda: x, "aiter": None}
    )
    monkeypatch.setattr(benchmarks, "find_spec", lambda name: None)
    rows = {row["who"]: row for row in benchmarks.measured(cell, watch)}
    assert (rows["trivet"]["us"], rows["trivet"]["cold_us"]) == (2.0, 5.0)
    assert (rows["torch"]["difference"], rows["trivet"]["difference"]) == (0.0, 1.0)
    assert rows["aiter"] == {"operator": "silu", "shape": "4", "who": "aiter",
                             "reason": "aiter is not installed"}  # fmt: skip
    monkeypatch.setattr(benchmarks, "find_spec", lambda name: object())
    found = benchmarks.measured(cell._replace(who={"aiter": benchmarks._aiter("f", len)}), watch)
    assert "No module named 'aiter'" in found[0]["reason"]


def test_checks_that_raise_are_not_ok_and_the_others_run():
    rows = checks.rows(SimpleNamespace(torch=torch.device("cpu"), info=None, ops=None))
    assert [row["name"] for row in rows] == [check.__name__ for check in checks.CHECKS]
    assert not any(row["ok"] for row in rows)
    assert all(row["seen"] for row in rows)
