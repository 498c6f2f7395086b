"""Devices or a reason from one record; the machine of this process is asked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from trivet.contracts import DeviceInfo
from trivet_rocm.discovery.answers import NOTHING, Record, rows, section
from trivet_rocm.discovery.describe import absence, describe, of_agent
from trivet_rocm.discovery.driver import build_absence, driver_notes, nodes_absence
from trivet_rocm.discovery.obstacle import Absence, Obstacle
from trivet_rocm.discovery.visible import visible

_CLOSED: Final = Obstacle.NO_PERMISSION
_BEFORE: Final = "one before it cannot be opened: open that one, or hide it (ROCR_VISIBLE_DEVICES)"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Args:
        devices: the usable devices, in order of torch's index; one that is not is left out.
        obstacle: the kind of reason for which there is none; None when there is one.
        reason: the sentence that belongs to it; what in it cannot be printed is escaped.
    """

    devices: tuple[DeviceInfo, ...] = ()
    obstacle: Obstacle | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Keeps a line a line: names of files and devices come from outside."""
        if not self.reason.isprintable():
            shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in self.reason)
            object.__setattr__(self, "reason", shown)


@cache
def this_machine() -> Finding:
    """What is found here; HIP stays as it was, and a fork afterwards is safe."""
    from trivet_rocm.discovery.record import gather, torch_facts

    build: Record = {"torch": torch_facts()}
    if found := build_absence(build):  # amdsmi is not even imported for a torch without HIP
        return _absent(found)
    return judge(gather())


def judge(record: object) -> Finding:
    """What a record means; a damaged one is a reason, too."""
    known: Record = record if isinstance(record, dict) else NOTHING
    if found := build_absence(known):
        return _absent(found)
    agents = rows(section(known, "rocminfo"), "agents")
    if agents:
        nodes = [of_agent(agent) for agent in agents]
    elif found := nodes_absence(known):
        return _absent(found)
    else:
        nodes = [n for n in rows(section(known, "kfd"), "nodes") if "error" not in n]
    chosen = visible(section(known, "environment"), nodes)
    return _absent(chosen) if isinstance(chosen, Absence) else _described(known, chosen)


def _described(known: Record, nodes: list[Record]) -> Finding:
    devices: list[DeviceInfo] = []
    left_out: list[Absence] = []
    notes = driver_notes(known)
    for index, node in enumerate(nodes):
        if any(why.kind is _CLOSED for why in left_out):
            left_out.append(Absence(_CLOSED, f"cuda:{index} has another number where {_BEFORE}"))
        elif why := absence(known, node, index):
            left_out.append(why)
        else:
            devices.append(describe(known, node, index, notes))
    if not devices:
        return _absent(left_out[0])
    others = tuple(f"left out: {why.reason}" for why in left_out)
    devices[0] = replace(devices[0], notes=devices[0].notes + others)
    return Finding(tuple(devices))


def _absent(found: Absence) -> Finding:
    return Finding(obstacle=found.kind, reason=found.reason)
