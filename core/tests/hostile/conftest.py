from __future__ import annotations

import os

import pytest

from fake_dists import FakeDists, installed
from trivet import plugins
from trivet.cli import commands
from trivet.settings import PREFIX

ACME = """
from stand_ins import ALL
from trivet.contracts import DeviceInfo

def trivet_devices():
    return [DeviceInfo("acme", name="Acme One", arch=("acme-1",))]

def trivet_implementations(device):
    return list(ALL)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No variable, file or installed command of the machine decides a test."""
    for name in [n for n in os.environ if n.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(commands, "entry_points", lambda group: [])
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    plugins.reset()
    yield
    plugins.reset()


@pytest.fixture
def dists(tmp_path, monkeypatch) -> FakeDists:
    folder = tmp_path / "site"
    folder.mkdir()
    return installed(folder, monkeypatch)


@pytest.fixture
def acme(dists) -> FakeDists:
    """One device with the stand-ins for kernels."""
    dists.add("acme-dist", "acme", ACME)
    return dists
