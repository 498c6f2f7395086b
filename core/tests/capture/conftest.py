from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No variable and no file of the machine decides a test."""
    for name in [n for n in os.environ if n.startswith("TRIVET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
