from __future__ import annotations

import json

import pytest
import torch

from imagined_machines import CPU, Said, mock, part, parts, two_hosts
from trivet.contracts.topology import Link, Node
from trivet.errors import ConfigError
from trivet.topology import Probe, Verdict, dump, from_json, join, judged, load, merge, probe


@pytest.mark.parametrize("number", [1, 2, 8])
def test_what_plugins_say_becomes_one_verdict(number):
    found = merge(parts(number))
    assert [n.name for n in found.devices] == ["host:0", *(f"acme:{i}" for i in range(number))]
    assert found.remarks == ()
    assert found.above("acme:0") == ("numa:0", "box")
    assert found.host("host:0") == "box"
    assert len(found.access) == number * (number - 1)
    assert len(found.links) == 1 + number * (number - 1) // 2


def test_what_nobody_claims_is_not_so():
    found = merge(parts(3, refused=[(0, 1)]))
    assert not found.reaches("acme:0", "acme:1")
    assert found.vetoes("acme:0", "acme:1")
    assert found.reaches("acme:1", "acme:0")
    assert not found.reaches("acme:0", "host:0")
    assert not found.vetoes("acme:0", "host:0")


def test_a_probe_takes_away_and_adds_nothing():
    claimed = merge(parts(3, refused=[(0, 1)]))
    found = judged(claimed, [
        Probe("acme:0", "acme:1", right=True, bytes_per_second=9e9),
        Probe("acme:1", "acme:2", right=False, reason="3 of 4 bytes are wrong"),
        Probe("acme:0", "acme:2", right=True, bytes_per_second=3e11),
        Probe("acme:2", "acme:0", right=True, bytes_per_second=2e11),
        Probe("host:0", "acme:2", right=True),
    ])  # fmt: skip
    assert not found.reaches("acme:0", "acme:1")
    assert not found.reaches("acme:1", "acme:2")
    assert found.allows("acme:1", "acme:2").reason == "3 of 4 bytes are wrong"
    assert not found.reaches("host:0", "acme:2")
    assert "a probe adds none" in found.remarks[0]
    assert len(found.links) == len(claimed.links)
    link = found.link("acme:0", "acme:2")
    assert (link.bytes_per_second, link.measured) == (2e11, True)
    again = judged(found, [Probe("acme:1", "acme:2", right=True)])
    assert not again.reaches("acme:1", "acme:2")


def test_a_vendor_that_raises_or_answers_nonsense_is_a_remark():
    class Bad:
        def nodes(self):
            return [Node("acme:0", "device"), "x", Node("y", "moon")]

        def links(self):
            return [Link("acme:0", "acme:9", "wire"), 3, Link("acme:0", "acme:0", "wire")]

        def reaches(self, reader, owner):
            raise OSError("no driver")

    found = merge([part(Bad(), 2)])
    assert found.links == ()
    assert not any(one.direct for one in found.access)
    text = "\n".join(found.remarks)
    for said in ("'x'", "moon", "'acme:9'", "3 is left", "reaches(0, 1) raises OSError: no driver"):
        assert said in text


@pytest.mark.parametrize(
    "node",
    [Node("a", "numa", cores=None), Node("a\n", "numa"), Node([], "numa"), Node("a", "numa", {}),
     Node("a", "numa", memory_bytes=-1), Node("x" * 500, "numa")],
)  # fmt: skip
def test_a_vendor_s_damaged_node_or_link_is_left_out(node, tmp_path):
    class Bad(Said):
        def nodes(self):
            return [node, Node("self", "numa", "self"), Node("box", "host", "self")]

        def links(self):
            return [Link("acme:0", "acme:1", "wire", float("nan")), Link("acme:0", [], "wire")]

    found = merge([part(Bad(2), 2)])
    assert {n.name for n in found.nodes} == {"self", "box", "acme:0", "acme:1"}
    assert found.links == ()
    assert len(found.remarks) == 3
    dump(found, tmp_path / "t.json")
    assert load(tmp_path / "t.json").nodes == found.nodes


def test_a_pair_that_nobody_claims_is_not_probed_and_keeps_its_stated_rate():
    one = part(Said(2, refused=[(0, 1), (1, 0)]), 2)
    assert list(probe([one], merge([one]))) == []
    probes = [Probe("acme:0", "acme:1", right=True, bytes_per_second=5)]
    assert not merge([one], probes).link("acme:0", "acme:1").measured


def test_devices_keep_their_indices_where_one_is_left_out():
    one = part(Said(3, refused=[(0, 2)]), 3)
    holed = type(one)("acme", ("acme:0", "acme:2"), (CPU, CPU), one.topology)
    found = merge([holed])
    assert not found.reaches("acme:0", "acme:2")
    assert found.reaches("acme:2", "acme:0")


class Broken(Said):
    """Copies as they are, but for what is broken."""

    def __init__(self, broken):
        super().__init__(2)
        self.broken = broken

    def read(self, out, inp):
        out.copy_(inp)
        if self.broken == "read" and len(out) > 4096:
            out[4096] ^= 1

    def write(self, out, inp):
        if self.broken == "raises":
            raise RuntimeError("illegal access\nmore")
        if self.broken != "write":
            out.copy_(inp)
        if self.broken == "source":
            inp.zero_()


def ticks():
    ticks.now = 0.0

    def clock():
        ticks.now += 0.5
        return ticks.now

    return clock


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("read", "1 of 4097 bytes are wrong that it read"),
        ("write", "1 of 1 bytes are wrong that it wrote"),
        ("raises", "a copy raises RuntimeError: illegal access"),
        ("source", "changed its source"),
    ],
)
def test_a_probe_sees_wrong_bytes_both_ways(broken, why):
    one = part(Broken(broken), 2)
    found = merge([one], probe([one], merge([one]), timed_bytes=0))
    assert [a.probed for a in found.access] == [False, False]
    assert why in found.access[0].reason
    assert not found.reaches("acme:0", "acme:1")


@pytest.mark.parametrize("said", [Broken(""), Said(2)], ids=["own copies", "torch copies"])
def test_a_probe_of_what_is_right_measures_the_link(said):
    one = part(said, 2)
    found = merge([one], probe([one], merge([one]), timed_bytes=1 << 10, repeats=3, clock=ticks()))
    assert [a.probed for a in found.access] == [True, True]
    assert found.link("acme:0", "acme:1").bytes_per_second == 2048
    assert found.link("acme:0", "acme:1").measured


def test_what_could_not_be_tried_is_a_remark_and_no_finding():
    def full(*size, device, dtype):
        raise torch.OutOfMemoryError("full\x1b\nmore")

    one = part(Said(2), 2)
    found = merge([one], probe([one], merge([one]), allocate=full))
    assert [a.probed for a in found.access] == [None, None]
    assert found.reaches("acme:0", "acme:1")
    assert "acme:0 and acme:1: not probed: no memory for it: full?" in found.remarks


def test_a_probe_allocates_on_the_two_devices():
    asked = []

    def allocate(*size, device, dtype):
        asked.append(device)
        return torch.empty(*size, dtype=dtype)

    here, there = torch.device("meta", 0), torch.device("meta", 1)
    one = type(part(Said(2), 2))("acme", ("acme:0", "acme:1"), (here, there), Broken(""))
    assert all(p.right for p in probe([one], merge([one]), timed_bytes=8, allocate=allocate))
    assert {here, there} == set(asked)


def test_hosts_are_joined_under_their_names():
    found = two_hosts()
    assert len(found.devices) == 16
    assert found.host("two/acme:3") == "two"
    assert found.reaches("two/acme:3", "two/acme:4")
    assert not found.reaches("one/acme:3", "two/acme:4")
    assert found.link("one", "two").bytes_per_second == 5e10
    with pytest.raises(ConfigError, match="others \\['one'\\]"):
        join([mock(1), mock(1)])


@pytest.mark.parametrize("verdict", [merge(parts(2)), mock(8), two_hosts(), Verdict()])
def test_a_file_comes_back_as_it_was(verdict, tmp_path):
    path = tmp_path / "t.json"
    dump(verdict, path)
    assert load(path).to_json() == verdict.to_json() | {"source": str(path)}


GOOD = merge(parts(2)).to_json()


def changed(*path, to):
    document = json.loads(json.dumps(GOOD))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return document


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "is no object"),
        ({}, "trivet_topology is missing"),
        (changed("trivet_topology", to=2), "is not 1"),
        (changed("trivet_topology", to=True), "a number from 0 up"),
        (changed("nodes", to={}), "nodes is no list"),
        (changed("nodes", to=[[]] * 4097), "at most 4096"),
        (changed("nodes", 0, to=7), "nodes\\[0\\]: is no object"),
        (changed("nodes", 0, "name", to="\x1b[2J"), "printable"),
        (changed("nodes", 0, "name", to=""), "a name"),
        (changed("nodes", 0, "name", to="acme:0"), "same name"),
        (changed("nodes", 0, "kind", to="moon"), "none of device, numa, host"),
        (changed("nodes", 1, "near", to="nowhere"), "no other node"),
        (changed("nodes", 1, "cores", to=[-1]), "cores"),
        (changed("nodes", 1, "memory_bytes", to=1.5), "memory_bytes"),
        (changed("links", 0, "a", to="acme:9"), "two of the nodes"),
        (changed("links", 0, "bytes_per_second", to=float("nan")), "above 0"),
        (changed("links", 0, "bytes_per_second", to=-1), "above 0"),
        (changed("links", 0, "bytes_per_second", to=10**400), "above 0"),
        (changed("links", 0, "measured", to=1), "true or false"),
        (changed("access", 0, "reader", to="box"), "not both devices"),
        (changed("access", 0, "claimed", to=None), "true or false"),
        (changed("access", 1, to=GOOD["access"][0]), "twice"),
        (changed("remarks", to=[3]), "remarks"),
    ],
)
def test_a_document_that_is_none_says_where(document, why):
    with pytest.raises(ConfigError, match=why):
        from_json(document)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"a": 1', b"\x00" * 64]
)
def test_a_file_that_is_no_json_is_refused(data, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        dump(Verdict(), tmp_path)


def test_nodes_that_hang_on_each_other_end():
    nodes = [{"name": "a", "kind": "numa", "near": "b"}, {"name": "b", "kind": "numa", "near": "a"}]
    found = from_json({"trivet_topology": 1, "nodes": nodes})
    assert found.above("a") == ("b", "a")
    assert found.host("a") == ""
