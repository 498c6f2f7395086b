"""Describes one visible device from the answers about it; unknown facts are None."""

from __future__ import annotations

from typing import Final

from trivet.contracts import DeviceInfo
from trivet_cuda.discovery import architecture
from trivet_cuda.discovery.answers import NOTHING, Record, amount, count, error, pair, rows, text
from trivet_cuda.discovery.obstacle import Absence, Obstacle
from trivet_cuda.discovery.visible import Place

_PROHIBITED: Final = 2
_FABRIC_WAITS: Final = (1, 2)  # not started, in progress
_SLOWED: Final = {
    0x4: "the power limit",
    0x8: "the hardware (heat or power)",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "the power supply",
}


def absence(gpu: Record, place: Place, index: int, flags: list[str]) -> Absence | None:
    """Why this device cannot be used; None when it can."""
    who = f"cuda:{index} ({text(gpu, 'name') or f'GPU {place.gpu}'})"
    capability = pair(gpu, "capability")
    if capability is None or not 0 < capability[0] < 100 or capability[1] > 9:
        why = error(gpu, "capability") or "its answer is damaged"
        return Absence(
            Obstacle.UNREADABLE,
            f"NVML does not tell the compute capability of {who} ({why}): update the driver and "
            "nvidia-ml-py",
        )
    shown = f"{capability[0]}.{capability[1]}"
    if capability < architecture.OLDEST:
        oldest = ".".join(map(str, architecture.OLDEST))
        return Absence(
            Obstacle.TOO_OLD,
            f"{who} has compute capability {shown}, trivet-cuda needs {oldest} (Ampere) or newer",
        )
    if count(gpu, "compute_mode") == _PROHIBITED:
        return Absence(
            Obstacle.PROHIBITED,
            f"{who} is in compute mode prohibited: nvidia-smi -c DEFAULT allows it again",
        )
    if flags and not architecture.runs(capability, flags):
        return Absence(
            Obstacle.NOT_IN_TORCH,
            f"{who} has compute capability {shown}, for which this torch has no code (it has "
            f"{', '.join(flags)}): install a torch whose CUDA knows sm_{shown.replace('.', '')}",
        )
    return None


def describe(
    gpu: Record, place: Place, index: int, flags: list[str], notes: list[str]
) -> DeviceInfo:
    """The device; ``absence`` must have found nothing.

    Args:
        gpu: the answers about the GPU.
        place: the GPU, or a slice of it.
        index: torch's number of the device.
        flags: the architectures that torch was built for.
        notes: what is true of every device here.
    """
    capability = pair(gpu, "capability") or (0, 0)
    slices = rows(gpu, "mig_devices")
    mig = slices[place.mig] if place.mig is not None and place.mig < len(slices) else None
    found = architecture.features(capability)
    if mig is None and _links_up(gpu):
        found |= {"nvlink"}
    if mig is not None:
        found |= {"mig"}
    cores = architecture.multiprocessors(capability, amount(gpu, "cuda_cores"))
    told = NOTHING if mig is None else mig
    return DeviceInfo(
        kind="cuda",
        index=index,
        torch_type="cuda",
        name=text(told, "name") or text(gpu, "name"),
        arch=architecture.names(capability),
        features=found,
        dtypes=architecture.dtypes(capability),
        cores=cores if mig is None else amount(mig, "multiprocessors"),
        subgroup_width=32,
        shared_bytes=architecture.shared_bytes(capability),
        # a slice has a part of the cache, and which part no table says
        cache_bytes=architecture.cache_bytes(text(gpu, "name")) if mig is None else {},
        memory_bytes=amount(gpu if mig is None else mig, "memory_bytes"),
        notes=(*_notes(gpu, mig), *_code_notes(capability, flags), *notes),
    )


def _links_up(gpu: Record) -> int:
    states = gpu.get("nvlinks")
    return sum(1 for s in states if s == 1) if isinstance(states, list) else 0


def _notes(gpu: Record, mig: Record | None) -> list[str]:
    """What a person should know: links, memory errors, clocks."""
    notes = []
    if mig is not None:
        notes.append(f"a MIG slice of {text(gpu, 'name') or 'a GPU'}, without links to others")
    elif note := _link_note(gpu):
        notes.append(note)
    generation, width = amount(gpu, "pcie_generation"), amount(gpu, "pcie_width")
    if generation and width:
        most = amount(gpu, "pcie_width_most") or width
        notes.append(f"PCIe {generation} x{width}" + (f" of x{most}" if most > width else ""))
    if ecc := pair(gpu, "ecc"):
        now, later = (("on" if bit else "off") for bit in ecc)
        change = f", {later} after a restart" if now != later else ""
        notes.append(f"ECC {now}{change}")
    if count(gpu, "fabric") in _FABRIC_WAITS:
        notes.append("the NVLink fabric is not ready: CUDA starts once nvidia-fabricmanager runs")
    bits = count(gpu, "clock_reasons") or 0
    if slowed := [what for bit, what in _SLOWED.items() if bits & bit]:
        notes.append(f"clocks are held down by {', '.join(slowed)}")
    return notes


def _link_note(gpu: Record) -> str:
    up = _links_up(gpu)
    states = gpu.get("nvlinks")
    number = len(states) if isinstance(states, list) else 0
    if not number:
        return ""
    speed = amount(gpu, "nvlink_mbps")
    each = f", {speed / 1000:.1f} GB/s each way" if speed and up else ""
    return f"{up} of {number} NVLinks up{each}"


def _code_notes(capability: tuple[int, int], flags: list[str]) -> list[str]:
    if flags and architecture.runs(capability, flags) == "compiled":
        return ["torch has no binary for this architecture: the driver compiles its code at start"]
    return []
