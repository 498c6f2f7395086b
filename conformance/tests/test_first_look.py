"""What somebody meets who runs the kit for the first time: no hardware, parts of a run, lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trivet_conformance.cli.cells import WIDTH, counted, listed
from trivet_conformance.cli.claiming import told
from trivet_conformance.cli.program import main
from trivet_conformance.subject.locating import locate
from trivet_conformance.suite.claims import Claim

AWAY = """
from trivet.contracts import DeviceInfo, implements

@implements("silu_and_mul@1", name="only")
def silu_and_mul(x):
    return x

def trivet_probe():
    return "no quark is plugged in"

def trivet_devices():
    return [DeviceInfo("quark", name="Quark One")]

def trivet_implementations(device):
    return [silu_and_mul]
"""
HERE = """
from trivet.contracts import DeviceInfo, implements
from trivet.catalogue.activation import silu_and_mul as declared

@implements("silu_and_mul@1", name="only")
def silu_and_mul(x):
    return declared.reference(x)

def trivet_devices():
    return [DeviceInfo("quark", name="Quark One")]

def trivet_implementations(device):
    return [silu_and_mul]
"""
ADDON = """
from trivet.contracts import implements
from trivet.catalogue.activation import silu_and_mul as declared

@implements("silu_and_mul@1", name="only")
def silu_and_mul(x):
    return declared.reference(x)

def trivet_implementations(device):
    return [silu_and_mul]
"""


def call(*words):
    return CliRunner().invoke(main, [str(w) for w in words])


@pytest.fixture
def away(tmp_path, monkeypatch):
    (tmp_path / "quark.py").write_text(AWAY)
    monkeypatch.chdir(tmp_path)
    return "./quark.py"


@pytest.fixture
def addon(tmp_path, monkeypatch):
    (tmp_path / "more.py").write_text(ADDON)
    (tmp_path / "pyproject.toml").write_text(
        '[project.entry-points."trivet.plugins"]\nmore = "more"\n'
        '[project.entry-points."trivet.extends"]\nmore = "cpu"\n'
    )
    monkeypatch.chdir(tmp_path)
    return "./more.py"


def test_a_file_beside_the_module_of_an_entry_point_is_a_plugin_of_its_own(tmp_path):
    package = tmp_path / "acme"
    package.mkdir()
    for name in ("__init__", "plugin", "other"):
        (package / f"{name}.py").write_text("")
    points = '[project.entry-points."trivet.plugins"]\nspecial = "acme.plugin"\n'
    (tmp_path / "pyproject.toml").write_text(points)
    found = [locate(str(p), tmp_path / "info").name for p in (
        package, package / "plugin.py", package / "other.py",
    )]  # fmt: skip
    assert found == ["special", "special", "other"]


def test_another_process_finds_a_plugin_given_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "quark.py").write_text(HERE)
    monkeypatch.chdir(tmp_path)
    case = "dispatch/silu_and_mul/quark/only/functional:process:float32:tokens=6,inter=64:normal"
    words = ("run", "--plugin", "./quark.py", "--quick", "--case", case)
    done = call(*words, "--dir", tmp_path / "out", "--json")
    lines = [json.loads(x) for x in (tmp_path / "out" / "report.jsonl").read_text().splitlines()]
    (fresh,) = [x for x in lines if ":process:" in x.get("id", "")]
    assert fresh["status"] == "pass", (fresh, done.output)


def test_a_device_that_is_away_is_not_ready(away):
    done = call("preflight", "--plugin", away)
    assert done.exit_code == 1, done.output
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("not ready: ")
    assert "no quark is plugged in" in last
    assert json.loads(call("preflight", "--plugin", away, "--json").stdout)["ok"] is False


def test_a_device_that_works_is_ready():
    done = call("preflight", "--plugin", "reference")
    assert (done.exit_code, done.stdout.strip().splitlines()[-1]) == (0, "ready")


def test_a_run_without_its_device_says_why_it_ends_with_1(away):
    done = call("run", "--plugin", away, "--quick")
    assert done.exit_code == 1
    assert "quark without a device" in done.stdout
    assert "None" not in done.stdout
    (why,) = (line for line in done.stdout.splitlines() if line.startswith("exit status 1: "))
    assert "no implementation was judged" in why
    assert "no quark is plugged in" in why
    assert call("run", "--plugin", away, "--level", "L0").exit_code == 1


def test_a_part_of_a_run_leaves_the_whole_report_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = Path("results", "conformance", "reference")
    whole.mkdir(parents=True)
    (whole / "report.jsonl").write_text("the whole\n")
    case = "meta/embedding/reference/none"
    for words in (["--op", "embedding", "--family", "meta"], ["--family", "fusion", "--op",
                  "embedding"], ["--case", case]):  # fmt: skip
        done = call("run", "--plugin", "reference", "--quick", "--in-process", *words)
        assert done.stdout.strip().splitlines()[-1] == f"report: {whole / 'cases'}"
    assert (whole / "report.jsonl").read_text() == "the whole\n"
    head = (whole / "cases" / "report.jsonl").read_text().splitlines()[0]
    assert json.loads(head)["case"] == case


def test_the_list_of_one_operator_speaks_of_no_other():
    done = call("list", "--plugin", "reference", "--op", "rms_norm")
    assert done.exit_code == 0
    assert "silu_and_mul" not in done.stdout
    rows = json.loads(call("list", "--plugin", "reference", "--op", "rms_norm", "--json").stdout)
    found = rows["suite"]["profiles"]["inference-dense"]
    assert 0 < found["lines"] == found["claimed"]


def test_the_list_folds_what_is_not_claimed(addon):
    done = call("list", "--plugin", addon, "--profile", "inference-dense")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert sum("not claimed, and optional" in line for line in lines) == 1
    assert "    not claimed, and wanted: rms_norm: bfloat16, float32" in lines
    assert not any("wanted: silu_and_mul" in line for line in lines)
    assert max(map(len, lines)) <= WIDTH


def test_an_add_on_is_told_what_it_may_claim(addon):
    text = " ".join(call("list", "--plugin", addon).stdout.split())
    assert "more adds to the device 'cpu'" in text
    assert "may claim L0" in text
    assert "adds to the device" not in call("list", "--plugin", "reference").stdout


def test_what_a_profile_lets_out_is_no_endless_line():
    left = tuple(f"operator_{i}/{dtype}" for i in range(30) for dtype in ("float16", "float32"))
    claim = Claim("1.0", "p", "L1", True, (), (), left, "0" * 64)
    lines = told(claim).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "60 cells of 30 operators" in lines[1]


def test_cells_are_told_by_operator():
    cells = ["a/float32", "b/float32", "a/float16", "c/-"]
    assert counted("left", cells) == "    left: 4 cells of 3 operators: a 2, b 1, c 1"
    assert listed("left", cells).splitlines()[0] == "    left: a: float32, float16"
    assert listed("left", cells).splitlines()[2] == "    left: c: every dtype"
    assert counted("left", []) == ""
