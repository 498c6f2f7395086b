"""Machines that are not there."""

from __future__ import annotations

from itertools import combinations

import torch

from trivet.contracts.topology import Link, Node
from trivet.topology import Access, Part, Verdict, join

CPU = torch.device("cpu")


class Said:
    """What a vendor says: devices in pairs of equal parity are joined by the faster wire."""

    def __init__(self, number, *, refused=()):
        self.number, self.refused = number, refused

    def nodes(self):
        return [Node(f"acme:{i}", "device", f"numa:{i % 2}") for i in range(self.number)]

    def links(self):
        return [
            Link(f"acme:{a}", f"acme:{b}", "wire" if a % 2 == b % 2 else "bus",
                 4e11 if a % 2 == b % 2 else 2e10)
            for a, b in combinations(range(self.number), 2)
        ]  # fmt: skip

    def reaches(self, reader, owner):
        return (reader, owner) not in self.refused


class Numa:
    """The host and two NUMA nodes."""

    def nodes(self):
        numa = [Node(f"numa:{i}", "numa", "box", (2 * i, 2 * i + 1), 1 << 30) for i in range(2)]
        return [Node("box", "host"), *numa]

    def links(self):
        return [Link("numa:0", "numa:1", "bus")]

    def reaches(self, reader, owner):
        return False


def part(said, number, plugin="acme"):
    return Part(plugin, tuple(f"{plugin}:{i}" for i in range(number)), (CPU,) * number, said)


def parts(number, **how):
    return [part(Numa(), 1, "host"), part(Said(number, **how), number)]


def mock(number, host="one"):
    devices = [Node(f"acme:{i}", "device", host) for i in range(number)]
    pairs = [(a.name, b.name) for a in devices for b in devices if a is not b]
    access = tuple(Access(a, b, claimed=True) for a, b in pairs)
    return Verdict((Node(host, "host"), *devices), tuple(Said(number).links()), access)


def two_hosts():
    return join([mock(8, "one"), mock(8, "two")], bytes_per_second=5e10)
