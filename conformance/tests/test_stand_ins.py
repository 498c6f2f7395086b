"""``--execution``: a plugin's device that it offers only where it is asked for."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from click.testing import CliRunner

from trivet.plugins import reset
from trivet_conformance.cli import program

STAND_IN = """
    import torch
    from trivet.contracts import DeviceInfo, Execution, implements

    def trivet_devices():
        return [DeviceInfo("acme", execution=Execution.EMULATED)]

    def trivet_implementations(device):
        return [silu]

    @implements("silu@1", name="plain")
    def silu(x):
        return torch.nn.functional.silu(x.float()).to(x.dtype)
"""
POINTS = "[trivet.plugins]\nacme = acme.plugin\n[trivet.contract]\nacme = v1:v1\n"


@pytest.fixture
def acme(tmp_path, monkeypatch):
    (tmp_path / "acme").mkdir()
    for name, text in {
        "__init__": "",
        "plugin": "def trivet_probe():\n    return 'no card is plugged in'\n",
        "emulated": textwrap.dedent(STAND_IN),
    }.items():
        (tmp_path / "acme" / f"{name}.py").write_text(text)
    info = tmp_path / "acme_wheel-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-wheel\nVersion: 1.0\n\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    reset()
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] == "acme"]:
        del sys.modules[name]
    reset()


def call(*arguments):
    return CliRunner().invoke(program.main, [str(a) for a in arguments])


def test_the_stand_in_runs_where_it_is_asked_for_and_every_line_says_so(acme):
    out = acme / "out"
    words = ("--quick", "--op", "silu", "--family", "poison", "--dir", out)
    done = call("run", "--plugin", "acme", "--execution", "emulated", *words)
    assert done.exit_code == 0, done.output
    lines = [json.loads(text) for text in (out / "report.jsonl").read_text().splitlines()]
    results = [line for line in lines if line.get("family") == "poison"]
    assert results
    assert {line["execution"] for line in results} == {"emulated"}
    assert all("--plugin acme" in r["repro"] for r in results)
    assert all("--execution emulated" in r["repro"] for r in results)


def test_without_the_word_the_plugin_itself_answers(acme):
    words = ("--quick", "--op", "silu", "--in-process", "--dir", acme / "out")
    done = call("run", "--plugin", "acme", *words)
    assert done.exit_code == 1
    assert "no card is plugged in" in done.output


@pytest.mark.parametrize("plugin", ["reference", "acme"])
def test_a_device_of_another_word_is_refused_or_away(acme, plugin):
    words = ("--execution", "interpreted", "--quick", "--in-process", "--dir", acme / "out")
    done = call("run", "--plugin", plugin, "--op", "silu", *words)
    assert done.exit_code == 1
    wanted = {"reference": "no device that is interpreted", "acme": "no card is plugged in"}
    assert wanted[plugin] in done.output


def test_preflight_takes_the_word_too(acme):
    done = call("preflight", "--plugin", "acme", "--execution", "emulated")
    assert (done.exit_code, done.stdout.strip().splitlines()[-1]) == (0, "ready"), done.output
