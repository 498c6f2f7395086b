from __future__ import annotations

import sys
import time

import pytest
import torch

import required
from trivet.cli import memory as command
from trivet.cli.memory_plot import levels
from trivet.memory import DeviceMemory, snapshot

FAILS = """
from trivet.contracts import DeviceInfo
def trivet_devices(): return [DeviceInfo("acme")]
class Source:
    def info(self): raise OSError("no driver")
def trivet_memory(device): return Source()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    snapshot.publisher.cache_clear()
    monkeypatch.setenv("TRIVET_MEMORY_SNAPSHOT", str(tmp_path / "run"))
    yield tmp_path / "run"
    snapshot.publisher.cache_clear()


@pytest.fixture
def engine(folder):
    memory = DeviceMemory(torch.device("cpu"), snapshots=folder)
    memory.budget.hard_bytes = 1 << 30
    memory.account(3 << 20, "weights")
    memory.account(1 << 20, "kv_cache", tier="pinned").release()
    memory.account(1 << 19, "kv_cache", tier="pinned")
    memory.publish()
    return memory


def test_every_documented_key_and_no_other(cli, engine):
    assert list(cli.json("memory")) == list(command.KEYS)


def test_without_a_program_the_totals_are_shown(cli, acme):
    found = cli.json("memory")
    assert found["programs"] == []
    assert [d["device"] for d in found["devices"]] == ["acme:0"]
    text = cli("memory").stdout
    assert "no program publishes: start one with TRIVET_MEMORY_SNAPSHOT=FOLDER" in text


def test_who_holds_what_by_tag_and_tier(cli, engine):
    device = cli.json("memory")["programs"][0]["devices"][0]
    assert [(h["tag"], h["tier"], h["nbytes"]) for h in device["held"]] == [
        ("weights", "", 3 << 20), ("kv_cache", "pinned", 1 << 19),
    ]  # fmt: skip
    text = cli("memory").stdout
    for part in ("weights", "3 MiB", "pinned", "512 KiB", "its peak", "4 MiB", "hard limit"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80


def test_another_folder_than_the_settings(cli, engine, folder, tmp_path):
    assert cli.json("memory", "--folder", str(tmp_path / "none"))["programs"] == []
    assert len(cli.json("memory", "--folder", str(folder))["programs"]) == 1


def test_a_plugin_that_cannot_say_is_a_remark(cli, dists):
    dists.add("acme-dist", "acme", FAILS)
    found = cli.json("memory")
    assert found["remarks"] == ["acme:0: memory info raises OSError: no driver"]
    assert "no driver" in cli("memory").stdout


def test_watching_goes_on_until_interrupted(cli, engine, monkeypatch):
    left = [2]

    def sleep(seconds: float) -> None:
        assert seconds == 5
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli("memory", "--watch", "5").stdout.count("weights") == 2


@pytest.mark.parametrize("seconds", ["0", "nan", "inf"])
def test_a_time_that_is_none_is_refused(cli, seconds):
    cli("memory", "--watch", seconds, code=2)


def test_a_figure_is_drawn(cli, engine, tmp_path):
    required.module("matplotlib")
    target = tmp_path / "held.svg"
    assert cli("memory", "--plot", str(target)).stdout.strip() == str(target)
    text = target.read_text()
    assert "</svg>" in text
    cli("memory", "--plot", str(tmp_path / "held.nothing"), code=2)
    cli("memory", "--plot", str(tmp_path / "none" / "held.svg"), code=2)


def test_a_figure_needs_matplotlib_and_a_program(cli, folder, monkeypatch, tmp_path):
    target = str(tmp_path / "held.svg")
    assert "no program publishes" in cli("memory", "--plot", target, code=2).stderr
    memory = DeviceMemory(torch.device("cpu"), snapshots=folder)
    memory.account(1, "a")
    memory.publish()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in cli("memory", "--plot", target, code=2).stderr


def test_levels_are_read_backwards_from_what_is_held():
    one = {
        "held": [{"tag": "a", "tier": "", "nbytes": 5}, {"tag": "a", "tier": "x", "nbytes": 1}],
        "timeline": [[1.0, "a", 4], [2.0, "b", 3], [3.0, "b", -3]],
    }
    times, by_tag = levels(one, 4.0)
    assert times == [-3.0, -2.0, -1.0, 0.0]
    assert by_tag == {"a": [6, 6, 6, 6], "b": [0, 3, 0, 0]}
