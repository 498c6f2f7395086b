"""The verdict: one object that says which nodes there are, and how one reaches another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

from trivet.contracts.topology import Link, Node
from trivet.errors import ConfigError

LONGEST: Final = 400
"""Characters of a name or sentence."""


def sentence(text: str) -> str:
    """Somebody's text as one printable line of bearable length."""
    line = "".join(c if c.isprintable() else "?" for c in text[: LONGEST + 1])
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


@dataclass(frozen=True, slots=True)
class Access:
    """Whether one device reads another's memory directly.

    Args:
        reader: the device that reads, by name.
        owner: the device whose memory it is.
        claimed: the vendor's package says so.
        probed: bytes were copied and were right, or not; None where nobody tried.
        reason: why it is not so.
    """

    reader: str
    owner: str
    claimed: bool
    probed: bool | None = None
    reason: str = ""

    @property
    def direct(self) -> bool:
        """Claimed, and not found to be wrong."""
        return self.claimed and self.probed is not False


@dataclass(frozen=True)
class Verdict:
    """What is known of the connections of a machine, or of several.

    Args:
        nodes: devices, NUMA nodes and hosts.
        links: ways between two of them.
        access: every ordered pair of devices of which a vendor said anything.
        remarks: what could not be found out, and what was found to be wrong.
        source: where it comes from.
    """

    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    access: tuple[Access, ...] = ()
    remarks: tuple[str, ...] = ()
    source: str = "this machine"

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _by_pair(self) -> dict[frozenset[str], Link]:
        """The best link of each pair: the fastest; of equals the first."""
        best: dict[frozenset[str], Link] = {}
        for link in self.links:
            pair = frozenset((link.a, link.b))
            if pair not in best or (link.bytes_per_second or 0) > (
                best[pair].bytes_per_second or 0
            ):
                best[pair] = link
        return best

    @cached_property
    def _by_readers(self) -> dict[tuple[str, str], Access]:
        return {(one.reader, one.owner): one for one in self.access}

    @property
    def devices(self) -> tuple[Node, ...]:
        """The devices."""
        return tuple(node for node in self.nodes if node.kind == "device")

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            ConfigError: there is none.
        """
        if name not in self._by_name:
            known = ", ".join(self._by_name) or "none"
            raise ConfigError(f"the topology has no node {name!r}", fix=f"known: {known}")
        return self._by_name[name]

    def link(self, a: str, b: str) -> Link | None:
        """The fastest way between two nodes; None where none is known."""
        return self._by_pair.get(frozenset((a, b)))

    def allows(self, reader: str, owner: str) -> Access | None:
        """What is known of one device's reading another's memory; None is nothing."""
        return self._by_readers.get((reader, owner))

    def reaches(self, reader: str, owner: str) -> bool:
        """Whether one device reads another's memory directly; what nobody claimed is not so."""
        found = self.allows(reader, owner)
        return reader == owner if found is None else found.direct

    def vetoes(self, reader: str, owner: str) -> bool:
        """Whether it is known that one device does not read another's memory directly."""
        found = self.allows(reader, owner)
        return found is not None and not found.direct

    def above(self, name: str) -> tuple[str, ...]:
        """What a node hangs on, nearest first."""
        found: list[str] = []
        near = self.node(name).near
        while near and near in self._by_name and near not in found:
            found.append(near)
            near = self._by_name[near].near
        return tuple(found)

    def host(self, name: str) -> str:
        """The host of a node; empty where none is known, which is this machine."""
        line = (name, *self.above(name))
        return next((one for one in line if self._by_name[one].kind == "host"), "")

    def to_json(self) -> dict[str, Any]:
        """As plain values, in order; ``from_json`` takes them back."""
        return {
            "trivet_topology": 1,
            "source": self.source,
            "nodes": [asdict(node) | {"cores": list(node.cores)} for node in self.nodes],
            "links": [asdict(link) for link in self.links],
            "access": [asdict(one) for one in self.access],
            "remarks": list(self.remarks),
        }


def join(
    verdicts: Iterable[Verdict], kind: str = "network", bytes_per_second: float | None = None
) -> Verdict:
    """One verdict over several machines; the names of each get its host's in front.

    Args:
        verdicts: of the machines, each with one host.
        kind: what connects the hosts.
        bytes_per_second: of one direction between two hosts; None is unknown.

    Raises:
        ConfigError: one has no host, or more; or two have the same.
    """
    parts = list(verdicts)
    hosts: list[str] = []
    nodes: list[Node] = []
    links: list[Link] = []
    access: list[Access] = []
    remarks: list[str] = []
    for one in parts:
        own = [node.name for node in one.nodes if node.kind == "host"]
        if len(own) != 1 or own[0] in hosts:
            raise ConfigError(
                f"the topology of {one.source} has the hosts {own}, others {hosts}",
                fix="join one topology for each machine, with one host of its own name",
            )
        host = own[0]
        hosts.append(host)
        name = {n.name: n.name if n.kind == "host" else f"{host}/{n.name}" for n in one.nodes}
        for node in one.nodes:
            near = "" if node.kind == "host" else name.get(node.near, host)
            nodes.append(replace(node, name=name[node.name], near=near))
        links += [replace(way, a=name[way.a], b=name[way.b]) for way in one.links]
        access += [replace(x, reader=name[x.reader], owner=name[x.owner]) for x in one.access]
        remarks += [sentence(f"{host}: {text}") for text in one.remarks]
    links += [
        Link(a, b, kind, bytes_per_second) for i, a in enumerate(hosts) for b in hosts[i + 1 :]
    ]
    source = sentence(", ".join(one.source for one in parts))
    return Verdict(tuple(nodes), tuple(links), tuple(access), tuple(remarks), source)
