"""What the measuring scripts of the repository do with their options; nothing is measured here."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Imports a script; it runs in an empty folder, and measures nothing."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)

    def load(name):
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "publish", lambda *_: None)
        return module

    return load


@pytest.mark.parametrize("spelled", [["--isa=avx2"], ["--isa", "avx2"]])
def test_the_child_of_a_level_does_not_start_another(script, monkeypatch, spelled):
    module, started = script("linear_rows"), []

    def run(command, **_):
        started.append(command[2:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(module.subprocess, "run", run)
    assert CliRunner().invoke(module.main, [*spelled, "--json", "a.json", "--quick"]).exit_code == 0
    assert started == [["--json", "a.json", "--quick"]]


@pytest.mark.parametrize("name", ["linear_rows", "cpu_kernels"])
@pytest.mark.parametrize("more", [[], ["--json", "figures.json"]])
def test_a_picture_stands_beside_the_figures_or_nowhere(script, monkeypatch, tmp_path, name, more):
    module, drawn = script(name), []
    monkeypatch.setattr(module, "picture", lambda path, *_: drawn.append(str(path)))
    monkeypatch.setattr(module, "measure", lambda *_: [])
    monkeypatch.setattr(module, "cells", lambda _: [], raising=False)
    assert CliRunner().invoke(module.main, more, catch_exceptions=False).exit_code == 0
    assert drawn == (["figures.png"] if more else [])
    assert list(tmp_path.iterdir()) == []
