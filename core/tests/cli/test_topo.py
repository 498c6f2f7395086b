from __future__ import annotations

import pytest

import required
from imagined_machines import mock
from trivet import topology
from trivet.cli import topo as command

JOINED = """
import torch
from trivet.contracts import DeviceInfo
from trivet.contracts.topology import Link
def trivet_devices(): return [DeviceInfo("acme", index=i) for i in range(2)]
class Joined:
    def links(self): return [Link("acme:0", "acme:1", "wire", 4e11)]
    def reaches(self, reader, owner): return True
    def read(self, out, inp):
        out.copy_(inp)
        if BROKEN: out.zero_()
    def write(self, out, inp): out.copy_(inp)
def trivet_collectives(device): return lambda: [Joined()]
BROKEN = False
"""


@pytest.fixture
def joined(dists):
    topology.kept.cache_clear()
    dists.add("acme-dist", "acme", JOINED)
    yield dists
    topology.kept.cache_clear()


@pytest.fixture
def named(tmp_path, monkeypatch):
    topology.kept.cache_clear()
    path = tmp_path / "mock.json"
    topology.dump(mock(8), path)
    monkeypatch.setenv("TRIVET_TOPOLOGY", str(path))
    yield path
    topology.kept.cache_clear()


def test_every_documented_key_and_no_other(cli, joined):
    assert list(cli.json("topo")) == list(command.KEYS)
    assert list(cli.json("topo", "advise", "--tp", "2")) == list(command.ADVICE)


def test_what_a_plugin_says_is_shown(cli, joined):
    text = cli("topo").stdout
    for said in ("acme:0", "400 GB/s stated", "claimed, not probed"):
        assert said in text


@pytest.mark.parametrize("broken", [False, True])
def test_probes_are_kept_in_a_file_that_stands_for_the_machine(cli, dists, broken, monkeypatch):
    topology.kept.cache_clear()
    dists.add("acme-dist", "acme", JOINED.replace("BROKEN = False", f"BROKEN = {broken}"))
    small = {"timed_bytes": 1 << 10, "repeats": 1}
    monkeypatch.setattr(topology.probe, "__kwdefaults__", topology.probe.__kwdefaults__ | small)
    said = cli("topo", "--probe", "--dump", "kept.json").stdout
    assert ("bytes are wrong that it read" in " ".join(said.split())) == broken
    monkeypatch.setenv("TRIVET_TOPOLOGY", "kept.json")
    rows = cli.json("topo")["access"]
    assert [(row["claimed"], row["probed"]) for row in rows] == [(True, not broken)] * 2
    topology.kept.cache_clear()


def test_a_file_stands_for_the_machine(cli, named):
    assert len(cli.json("topo")["nodes"]) == 9
    placed = cli.json("topo", "advise", "--tp", "4", "--pp", "2")
    assert placed["devices"][:4] == ["acme:0", "acme:2", "acme:4", "acme:6"]
    text = cli("topo", "advise", "--tp", "4", "--dp", "2").stdout
    assert "slowest pair" in text


def test_what_cannot_be_placed_is_one_message(cli, named):
    result = cli("topo", "advise", "--tp", "16", code=2)
    assert "there are 8 devices" in result.stderr


def test_the_files_of_two_machines_become_one(cli, named, tmp_path, monkeypatch):
    topology.dump(mock(2, "two"), tmp_path / "two.json")
    cli("topo", "join", str(named), "two.json", "--rate", "50", "--dump", "both.json")
    monkeypatch.setenv("TRIVET_TOPOLOGY", "both.json")
    placed = cli.json("topo", "advise", "--tp", "10")
    assert placed["devices"][-1] == "two/acme:1"
    assert placed["warnings"] == ["tp: a group spans hosts"]
    assert "others ['one']" in cli("topo", "join", str(named), str(named), code=2).stderr


def test_a_damaged_file_is_one_message(cli, named):
    named.write_text("{")
    assert "is no JSON" in cli("topo", code=2).stderr


def test_a_picture_is_drawn_and_a_bad_name_is_one_message(cli, named, tmp_path):
    required.module("matplotlib")
    cli("topo", "--picture", "links.svg")
    assert (tmp_path / "links.svg").read_text().startswith("<?xml")
    assert "cannot be written" in cli("topo", "--picture", "links.moon", code=2).stderr
