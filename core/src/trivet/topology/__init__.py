"""How the devices of a machine are connected: one verdict that every leg shares.

``machine()`` is this machine, or the file that ``TRIVET_TOPOLOGY`` names. Nothing here starts a
device but ``machine(probes=True)``, which copies bytes between devices and compares them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import FunctionType
from typing import cast

from trivet import settings
from trivet.contracts.topology import Topology
from trivet.plugins import describe, discover
from trivet.plugins.answers import has_abilities
from trivet.topology.advise import Placement, Plan, advise
from trivet.topology.file import dump, from_json, load
from trivet.topology.merge import Part, Probe, in_list, judged, merge
from trivet.topology.probe import probe
from trivet.topology.verdict import Access, Verdict, join

__all__ = [
    "Access",
    "Part",
    "Placement",
    "Plan",
    "Probe",
    "Verdict",
    "advise",
    "dump",
    "from_json",
    "join",
    "judged",
    "kept",
    "load",
    "machine",
    "merge",
    "parts",
    "probe",
]


def machine(*, probes: bool = False) -> Verdict:
    """How this machine is connected; the file of ``TRIVET_TOPOLOGY`` stands in for it.

    Args:
        probes: copy bytes between devices, compare and time them; it starts the devices.

    Raises:
        ConfigError: the file is no topology.
    """
    named = settings.read().topology
    if named is not None and not probes:
        return kept(named)
    found = parts()
    said = merge(found)
    return judged(said, probe(found, said)) if probes else said


@cache
def kept(path: Path) -> Verdict:
    """A file, which is read once.

    Raises:
        ConfigError: it is no topology.
    """
    return load(path)


def parts() -> list[Part]:
    """What every usable plugin says of how its devices are connected."""
    discovery = discover()
    found = []
    for name in discovery.names:
        devices = discovery.devices(name)
        if not devices:
            continue
        topology: Topology | None = None
        trouble = ""
        for plugin in (name, *discovery.usable(extends=name)):
            given = discovery.ask(plugin, "trivet_collectives", device=devices[0])
            try:
                answer = given() if isinstance(given, FunctionType) else given
            except Exception as error:  # noqa: BLE001 - code of a vendor: named in the verdict
                trouble = f"what it brings for groups raises {describe.said(error)}"
                continue
            for one in in_list(answer):
                if not isinstance(one, type) and has_abilities(one, Topology):
                    topology = topology or cast("Topology", one)
        names = tuple(f"{info.kind}:{info.index}" for info in devices)
        found.append(Part(name, names, tuple(i.torch for i in devices), topology, trouble))
    return found
