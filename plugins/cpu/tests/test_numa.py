from __future__ import annotations

import trivet
from trivet.contracts.topology import Link, Node
from trivet_cpu.numa import NumaTopology


def listed(folder, rows):
    for name, cores, distances in rows:
        (folder / name).mkdir(parents=True)
        (folder / name / "cpulist").write_text(cores)
        (folder / name / "distance").write_text(distances)
        (folder / name / "meminfo").write_text("Node 0 MemTotal:  1024 kB\nNode 0 MemFree: 1 kB\n")
    return NumaTopology(folder)


def test_nodes_cores_memory_and_distances(tmp_path):
    found = listed(tmp_path, [("node0", "0-1,4\n", "10 21\n"), ("node2", "2-3\n", "21 10\n")])
    host, *nodes = found.nodes()
    assert host.kind == "host"
    assert nodes == [
        Node("numa:0", "numa", host.name, (0, 1, 4), 1 << 20),
        Node("numa:2", "numa", host.name, (2, 3), 1 << 20),
    ]
    assert found.links() == [Link("numa:0", "numa:2", "memory at 2.1 times the local distance")]
    assert not found.reaches(0, 0)


def test_a_machine_that_lists_nothing_or_nonsense(tmp_path):
    assert [n.kind for n in NumaTopology(tmp_path / "none").nodes()] == ["host"]
    found = listed(tmp_path, [("node0", "0-999999\n", "x"), ("node1", "", ""), ("power", "0", "")])
    assert [n.cores for n in found.nodes()] == [(), (), ()]
    assert found.links() == []


def test_the_device_has_this_machine(monkeypatch):
    monkeypatch.delenv("TRIVET_TOPOLOGY", raising=False)
    found = trivet.device("cpu").topology
    assert found.host("cpu:0") == found.nodes[0].name
    assert not any(one.direct for one in found.access)
