"""``trivet memory`` on files that nobody of this version wrote, and on names that do not print."""

from __future__ import annotations

import copy
import json
import sys

import pytest
import torch

import required
from trivet.cli.memory_plot import levels
from trivet.memory import DeviceMemory, snapshot

CPU = torch.device("cpu")
ODD = [None, True, -1, 1.5, float("nan"), float("inf"), 10**400, "", "x", [], [1], {}, {"a": 1}]
UNPRINTABLE = "a\x1b]0;owned\x07\u202e\udcff\nb"


@pytest.fixture
def document(tmp_path):
    snapshot.publisher.cache_clear()
    memory = DeviceMemory(CPU, snapshots=tmp_path / "first")
    memory.account(5, "weights")
    path = memory.publish()
    yield json.loads(path.read_text()) | {"where": "elsewhere"}
    snapshot.publisher.cache_clear()


def places(value, path=()):
    """Every place in a document, as the steps that lead there."""
    if path:
        yield path
    steps = enumerate(value) if isinstance(value, list) else ()
    for step, inner in value.items() if isinstance(value, dict) else steps:
        yield from places(inner, (*path, step))


def damaged(document, path, value):
    made = copy.deepcopy(document)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if value is ODD:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def test_a_document_of_any_values_is_shown_or_named(cli, document, tmp_path, monkeypatch):
    monkeypatch.setattr("trivet.cli.memory._totals", lambda: ([], []))
    shown = 0
    for path in places(document):
        for value in (*ODD, ODD):
            (tmp_path / "1.json").write_text(json.dumps(damaged(document, path, value)))
            programs, remarks = snapshot.read(tmp_path)
            if not programs:
                assert (tmp_path / "1.json").exists() == bool(remarks)
                continue
            assert not remarks
            shown += 1
            assert "process" in cli("memory", "--folder", str(tmp_path)).stdout
            for one in programs[0]["devices"]:
                levels(one, programs[0]["time"])
    assert shown > 10


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"schema": 1, "a": ' * 50_000, "\x00", "1" * 9999, '"\\ud800"', "NaN"],
)
def test_a_file_that_is_no_document_is_named(cli, text, tmp_path):
    (tmp_path / "1.json").write_text(text)
    found = cli.json("memory", "--folder", str(tmp_path))
    assert found["programs"] == []
    assert found["remarks"][0].startswith("1.json: ")


def test_names_that_do_not_print_are_shown_as_escapes(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [UNPRINTABLE])
    snapshot.publisher.cache_clear()
    memory = DeviceMemory(CPU, snapshots=tmp_path)
    memory.account(5, UNPRINTABLE, tier=UNPRINTABLE)
    memory.account(5, "$\\frac{", tier="_tier")
    memory.publish()
    snapshot.publisher.cache_clear()
    text = cli("memory", "--folder", str(tmp_path)).stdout
    assert not set(text) & set("\x1b\x07\u202e\udcff")
    assert "a\\x1b]0;owned" in text
    assert cli.json("memory", "--folder", str(tmp_path))["programs"]
    if required.module("matplotlib"):
        target = tmp_path / "held.svg"
        cli("memory", "--folder", str(tmp_path), "--plot", str(target))
        assert "\\frac{" in target.read_text() or target.stat().st_size


def test_a_plugin_whose_memory_cannot_say_stops_no_account(tmp_path, caplog):
    class Source:
        def info(self):
            raise ZeroDivisionError("no driver")

    snapshot.publisher.cache_clear()
    memory = DeviceMemory(CPU, Source(), snapshots=tmp_path)
    with memory.account(5, "weights"):
        assert memory.ledger.used_bytes == 5
    memory.account(5, "weights")
    assert memory.ledger.used_bytes == 5
    assert caplog.text.count("memory is no longer published") == 1
    snapshot.publisher.cache_clear()
