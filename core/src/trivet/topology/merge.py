"""Makes one verdict of what vendors say and what was probed; a probe only takes away."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

import torch

from trivet.contracts.topology import Link, Node, Places, Topology
from trivet.errors import ConfigError
from trivet.plugins.answers import has_abilities
from trivet.plugins.describe import said, shown
from trivet.topology.file import checked
from trivet.topology.verdict import Access, Verdict, sentence

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """What one plugin brings.

    Args:
        plugin: its name.
        names: its devices by index, as ``trivet.device`` names them.
        devices: the same, as torch has them.
        topology: who knows how they are connected; None where nobody does.
        trouble: why that could not be asked.
    """

    plugin: str
    names: tuple[str, ...]
    devices: tuple[torch.device, ...]
    topology: Topology | None = None
    trouble: str = ""

    @property
    def indices(self) -> tuple[int, ...]:
        """The devices' indices, which their names end with: an unusable one is left out."""
        return tuple(int(name.rpartition(":")[2]) for name in self.names)


@dataclass(frozen=True, slots=True)
class Probe:
    """What became of one probe.

    Args:
        reader: the device that read, and wrote.
        owner: the device whose memory that was.
        right: all bytes were as sent; None where it could not be tried.
        bytes_per_second: of reads, the median; None was not measured.
        reason: what was wrong.
    """

    reader: str
    owner: str
    right: bool | None
    bytes_per_second: float | None = None
    reason: str = ""


def merge(parts: Sequence[Part], probes: Iterable[Probe] = ()) -> Verdict:
    """One verdict of what plugins say, and of probes.

    What a plugin's own code raises is a remark, and what it would have said is absent.
    """
    remarks = [f"{part.plugin}: {part.trouble}" for part in parts if part.trouble]
    nodes: dict[str, Node] = {}
    links: list[Link] = []
    access: list[Access] = []
    for part in parts:
        for node in _nodes(part, remarks):
            _add(nodes, node, part, remarks)
    host = next((n.name for n in nodes.values() if n.kind == "host"), "")
    if not host:
        host = socket.gethostname() or "host"
        nodes[host] = Node(host, "host")
    for name, node in nodes.items():
        if node.kind == "host":
            nodes[name] = replace(node, near="")
        elif node.near not in nodes or node.near == name:
            nodes[name] = replace(node, near=host)
    for part in parts:
        for link in _links(part, remarks):
            if link.a in nodes and link.b in nodes:
                links.append(link)
            else:
                remarks.append(f"{part.plugin}: a link between {link.a!r} and {link.b!r}, which "
                               "are not two nodes, is left out")  # fmt: skip
        access += _claims(part, remarks)
    lines = tuple(map(sentence, remarks))
    return judged(Verdict(tuple(nodes.values()), tuple(links), tuple(access), lines), probes)


def judged(verdict: Verdict, probes: Iterable[Probe]) -> Verdict:
    """The verdict with the findings of probes: they take claims away and add none.

    A measured rate replaces the stated one of a link that there is; of two directions the slower.
    """
    every = list(probes)
    untried = [
        sentence(f"{p.reader} and {p.owner}: not probed: {p.reason}")
        for p in every
        if p.right is None
    ]
    by_pair = {(p.reader, p.owner): p for p in every if p.right is not None}
    access = []
    for one in verdict.access:
        probe = by_pair.get((one.reader, one.owner))
        if probe is not None:
            wrong = one.probed is False and one.reason
            right = bool(probe.right) and one.probed is not False
            reason = wrong or sentence(probe.reason) or one.reason
            one = replace(one, probed=right, reason=reason)  # noqa: PLW2901
        access.append(one)
    links = []
    for link in verdict.links:
        both = (by_pair.get((link.a, link.b)), by_pair.get((link.b, link.a)))
        rates = [p.bytes_per_second for p in both if p and p.bytes_per_second
                 and verdict.reaches(p.reader, p.owner)]  # fmt: skip
        best = verdict.link(link.a, link.b) is link  # what was measured is the way that was taken
        if rates and best:
            link = replace(link, bytes_per_second=min(rates), measured=True)  # noqa: PLW2901
        links.append(link)
    known = {(one.reader, one.owner) for one in access}
    remarks = [
        f"{p.reader} and {p.owner}: nobody claims direct access, and a probe adds none"
        for pair, p in by_pair.items() if pair not in known
    ]  # fmt: skip
    return replace(
        verdict,
        links=tuple(links),
        access=tuple(access),
        remarks=(*verdict.remarks, *untried, *remarks),
    )


def _add(nodes: dict[str, Node], node: Node, part: Part, remarks: list[str]) -> None:
    """Add a node, or what is new about one that there is."""
    known = nodes.get(node.name)
    if known is None:
        nodes[node.name] = node
    elif known.kind != node.kind:
        remarks.append(f"{part.plugin}: {node.name} is a {node.kind}, before it was a {known.kind}")
    else:
        nodes[node.name] = replace(
            known, near=known.near or node.near, cores=known.cores or node.cores,
            memory_bytes=known.memory_bytes if known.memory_bytes is not None
            else node.memory_bytes,
        )  # fmt: skip


def _nodes(part: Part, remarks: list[str]) -> list[Node]:
    """The nodes of a plugin, its devices always among them."""
    told: list[Node] = []
    if has_abilities(part.topology, Places):
        places = cast("Places", part.topology)
        answer: list[object] = _ask(part, "nodes()", lambda: list(places.nodes()), [], remarks)
        told = [one for one in _checked(part, answer, remarks) if isinstance(one, Node)]
    return [*told, *(Node(name, "device") for name in part.names)]


def _links(part: Part, remarks: list[str]) -> list[Link]:
    if part.topology is None:
        return []
    topology = part.topology
    answer: list[object] = _ask(part, "links()", lambda: list(topology.links()), [], remarks)
    return [one for one in _checked(part, answer, remarks) if isinstance(one, Link)]


def _checked(part: Part, answer: Iterable[object], remarks: list[str]) -> Iterator[Node | Link]:
    for one in answer:
        try:
            yield checked(one)
        except ConfigError as error:
            remarks.append(f"{part.plugin}: {shown(one)} is left out: {error.what}")


def _claims(part: Part, remarks: list[str]) -> list[Access]:
    """What a plugin says of every ordered pair of its devices."""
    if part.topology is None:
        return []
    topology = part.topology
    found = []
    for i, reader in zip(part.indices, part.names, strict=True):
        for j, owner in zip(part.indices, part.names, strict=True):
            if i == j:
                continue
            what = f"reaches({i}, {j})"
            claim = _ask(part, what, partial(topology.reaches, i, j), False, remarks) is True
            reason = "" if claim else f"{part.plugin} says that it does not"
            found.append(Access(reader, owner, claim, None, reason))
    return found


def _ask(part: Part, what: str, call: Callable[[], T], instead: T, remarks: list[str]) -> T:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - code of a vendor: named in the remark
        remarks.append(f"{part.plugin}: {what} raises {said(error)}")
        return instead


def in_list(answer: object) -> list[object]:
    """The parts of what a plugin's ``trivet_collectives`` returned."""
    return list(answer) if isinstance(answer, list | tuple) else [answer]
