"""How the GPUs of recorded machines are connected; what NVML says of pairs is written by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import required
import trivet_cuda.topology as module
from trivet.contracts.topology import PeerCopier, Places, Topology
from trivet.topology import Part, Plan, advise, from_json, merge
from trivet_cuda.discovery.between import between
from trivet_cuda.topology import CudaTopology

DATA = Path(__file__).parent / "data"
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
EIGHT = RECORDS["h200_x8"]
SYSTEM, NODE = 50, 40


def pairs(number, remotes=lambda i: [], read=lambda i, j: 0):
    """Half of the GPUs on each NUMA node."""
    half = max(1, number // 2)
    rows = []
    for i in range(number):
        others = [j for j in range(number) if j != i]
        rows.append({
            "bus": f"00000000:{i:02X}:00.0",
            "numa": i // half,
            "remotes": remotes(i),
            "read": [read(i, j) if j in others else None for j in range(number)],
            "ancestor": [(NODE if i // half == j // half else SYSTEM) if j in others else None
                         for j in range(number)],
        })  # fmt: skip
    return {"devices": rows}


def verdict(topology, number):
    names = tuple(f"cuda:{i}" for i in range(number))
    return merge([Part("cuda", names, tuple(map(torch.device, names)), topology)])


def test_it_has_every_ability():
    for ability in (Topology, Places, PeerCopier):
        assert isinstance(CudaTopology(), ability)


def test_eight_h200_on_switches():
    found = verdict(CudaTopology(EIGHT, pairs(8)), 8)
    assert found.remarks == ()
    link = found.link("cuda:0", "cuda:7")
    assert (link.kind, link.hops, link.measured) == ("NVLink x18 by switch", 2, False)
    assert link.bytes_per_second == pytest.approx(478e9, rel=1e-3)
    kinds = {way.kind for way in found.links}
    assert kinds == {
        "NVLink x18 by switch", "PCIe 5 x16 in one NUMA node", "PCIe 5 x16 between NUMA nodes",
    }  # fmt: skip
    assert len(found.links) == 2 * 28
    assert found.node("cuda:5").memory_bytes == 150754820096
    assert all(one.direct for one in found.access)
    assert advise(found, Plan(tp=8)).warnings == ()
    assert from_json(found.to_json()).access == found.access


def test_what_nvml_does_not_tell_is_not_claimed():
    found = verdict(CudaTopology(EIGHT, {"devices": []}), 8)
    assert not any(one.claimed for one in found.access)
    assert found.link("cuda:0", "cuda:1").kind == "NVLink x18 by switch"
    refused = CudaTopology(EIGHT, pairs(8, read=lambda i, j: {"error": "NotSupported"}))
    assert not refused.reaches(0, 1)
    some = CudaTopology(EIGHT, pairs(8, read=lambda i, j: 3 if (i, j) == (0, 1) else 0))
    assert not some.reaches(0, 1)
    assert some.reaches(1, 0)
    assert not some.reaches(0, 99)


def test_nvlinks_from_gpu_to_gpu_are_counted_by_their_other_ends():
    record = copy.deepcopy(EIGHT)
    record["nvml"]["devices"] = record["nvml"]["devices"][:4]
    for gpu in record["nvml"]["devices"]:
        gpu |= {"fabric": {"error": "NotSupported"}, "pcie_generation": 4}

    def remotes(i):  # three links to the neighbour in a pair, two to another pair
        return [[0, f"0000:{i ^ 1:02x}:00.0"]] * 3 + [[0, f"00000000:{i ^ 2:02X}:00.0"]] * 2

    found = verdict(CudaTopology(record, pairs(4, remotes)), 4)
    assert found.link("cuda:0", "cuda:1").kind == "NVLink x3"
    assert found.link("cuda:0", "cuda:2").hops == 1
    assert found.link("cuda:0", "cuda:2").bytes_per_second == pytest.approx(53e9, rel=1e-2)
    assert found.link("cuda:0", "cuda:3").kind == "PCIe 4 x16 between NUMA nodes"
    assert [way.kind for way in found.links if (way.a, way.b) == ("cuda:0", "cuda:2")] == [
        "NVLink x2", "PCIe 4 x16 between NUMA nodes",
    ]  # fmt: skip
    assert advise(found, Plan(tp=2, dp=2)).devices[:2] == ("cuda:0", "cuda:1")


def test_only_visible_gpus_are_nodes_in_the_order_of_torch():
    record = copy.deepcopy(EIGHT)
    record["environment"]["CUDA_VISIBLE_DEVICES"] = "5,1"
    topology = CudaTopology(record, pairs(8, read=lambda i, j: 0 if (i, j) == (5, 1) else 1))
    assert [(n.name, n.near) for n in topology.nodes()] == [
        ("cuda:0", "numa:1"), ("cuda:1", "numa:0"),
    ]  # fmt: skip
    assert topology.reaches(0, 1)
    assert not topology.reaches(1, 0)


@pytest.mark.parametrize("name", RECORDS)
def test_every_recorded_machine_has_a_topology_without_pairs(name):
    topology = CudaTopology(RECORDS[name], {})
    nodes = topology.nodes()
    links = topology.links()
    assert len({n.name for n in nodes}) == len(nodes)
    assert all(way.a != way.b for way in links)
    assert not links or len(nodes) > 1


@pytest.mark.parametrize(
    "damaged",
    [{"devices": 3}, {"devices": [3] * 8}, {"devices": [{"remotes": [1], "read": 0}] * 8}],
)
def test_damaged_answers_are_no_answers(damaged):
    found = verdict(CudaTopology(EIGHT, damaged), 8)
    assert not any(one.claimed for one in found.access)


class Nvml:
    """Two GPUs, joined by one NVLink; one function is refused."""

    def __init__(self):
        self.open = 0

    def nvmlInit(self):  # noqa: N802 - its name
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802 - its name
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802 - its name
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802 - its name
        return index

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802 - its name
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0".encode())

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802 - its name
        if link > 1:
            raise ValueError
        return 1 - link

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):  # noqa: N802 - its name
        return 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):  # noqa: N802 - its name
        return self.nvmlDeviceGetPciInfo(1 - handle)

    def nvmlDeviceGetP2PStatus(self, one, other, what):  # noqa: N802 - its name
        return 0


def test_nvml_is_asked_of_every_pair_and_shut_down(tmp_path):
    nvml = Nvml()
    (tmp_path / "0000:00:00.0").mkdir()
    (tmp_path / "0000:00:00.0" / "numa_node").write_text("1\n")
    first, second = between(lambda: nvml, tmp_path)["devices"]
    assert nvml.open == 0
    assert first == {
        "bus": "00000000:00:00.0", "numa": 1, "remotes": [[0, "00000000:01:00.0"]],
        "read": [None, 0], "ancestor": [None, {"error": "FunctionNotFound"}],
    }  # fmt: skip
    assert second["numa"] is None
    json.dumps([first, second])


def test_the_stand_in_has_no_function_that_the_binding_lacks():
    pynvml = required.module("pynvml")
    names = [n for n in vars(Nvml) if n.startswith("nvml")]
    names.append("nvmlDeviceGetTopologyCommonAncestor")
    assert [n for n in names if not hasattr(pynvml, n)] == []


def test_a_machine_without_nvml_has_no_pairs():
    def missing():
        raise ImportError

    assert between(missing) == {"devices": []}


@pytest.mark.parametrize("size", [1, 9, 64])
def test_a_read_and_a_write_go_through_the_other_device_s_address(monkeypatch, size):
    opened = []
    monkeypatch.setattr(module, "_open_ways", lambda a, b: opened.append((a, b)))
    monkeypatch.setattr(torch.cuda, "synchronize", opened.append)
    mine, theirs = torch.zeros(size, dtype=torch.uint8), torch.arange(size, dtype=torch.uint8)
    CudaTopology().read(mine, theirs)
    assert torch.equal(mine, theirs)
    CudaTopology().write(theirs, mine.add_(1))
    assert torch.equal(mine, theirs)
    assert len(opened) == 4
