"""Devices or a reason from one record; the machine of this process is asked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from trivet.contracts import DeviceInfo
from trivet_cuda.discovery.answers import NOTHING, Record, error, rows, section
from trivet_cuda.discovery.describe import absence, describe
from trivet_cuda.discovery.driver import (
    build_absence,
    driver_notes,
    start_absence,
    version_absence,
)
from trivet_cuda.discovery.jetson import is_jetson, jetson_gpus
from trivet_cuda.discovery.obstacle import Absence, Obstacle
from trivet_cuda.discovery.visible import visible


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
    """What is found here; CUDA stays as it was, and a fork afterwards is safe."""
    from trivet_cuda.discovery.record import gather, torch_facts

    build: Record = {"torch": torch_facts()}
    if found := build_absence(build):  # NVML is not even imported for a torch without CUDA
        return _absent(found)
    return judge(gather())


def judge(record: object) -> Finding:
    """What a record means; a damaged one is a reason, too."""
    known: Record = record if isinstance(record, dict) else NOTHING
    if found := build_absence(known):
        return _absent(found)
    gpus = _gpus(known)
    if isinstance(gpus, Absence):
        return _absent(gpus)
    if found := version_absence(known):
        return _absent(found)
    places = visible(known, gpus)
    if isinstance(places, Absence):
        return _absent(places)
    flags = section(known, "torch").get("arch_flags")
    texts = [f for f in flags if isinstance(f, str)] if isinstance(flags, list) else []
    devices: list[DeviceInfo] = []
    left_out: list[Absence] = []
    notes = driver_notes(known)
    for index, place in enumerate(places):
        gpu = gpus[place.gpu]
        if why := absence(gpu, place, index, texts):
            left_out.append(why)
        else:
            devices.append(describe(gpu, place, index, texts, notes))
    if not devices:
        return _absent(left_out[0])
    others = tuple(f"left out: {why.reason}" for why in left_out)
    devices[0] = replace(devices[0], notes=devices[0].notes + others)
    return Finding(tuple(devices))


def _gpus(record: Record) -> list[Record] | Absence:
    """The answers about each GPU of the machine."""
    if is_jetson(record):
        return jetson_gpus(record)
    if found := start_absence(record):
        return found
    nvml = section(record, "nvml")
    if why := error(nvml, "count"):
        return Absence(Obstacle.NVML_FAILED, f"NVML does not count the GPUs ({why}): see dmesg")
    return rows(nvml, "devices")


def _absent(found: Absence) -> Finding:
    return Finding(obstacle=found.kind, reason=found.reason)
