"""Which GPUs torch sees, and in which order: index ``i`` of the result is torch's ``cuda:i``.

The rules are those of the CUDA programming guide for ``CUDA_VISIBLE_DEVICES`` and of the MIG user
guide; where torch reads the variable more narrowly than the driver (a list is of numbers or of
one kind of UUID), torch's reading counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trivet_cuda.discovery.answers import Record, count, pair, rows, section, text
from trivet_cuda.discovery.obstacle import Absence, Obstacle

_NUMBER: Final = re.compile(r"\s*\+?([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a visible device is.

    Args:
        gpu: NVML's number of the GPU.
        mig: which of its slices; None for the whole.
    """

    gpu: int
    mig: int | None = None


def visible(record: Record, gpus: Sequence[Record]) -> list[Place] | Absence:
    """The places of ``cuda:0``, ``cuda:1`` and so on, or why there is none."""
    environment = section(record, "environment")
    failed = [text(gpu, "error") for gpu in gpus]  # of the GPUs that could not be opened
    usable = [n for n, name in enumerate(failed) if name != "NoPermission"]
    if not usable:
        return _none(gpus)
    lost = next((n for n in usable if failed[n]), None)
    if lost is not None:
        return Absence(
            Obstacle.DEVICE_LOST,
            f"GPU {lost} does not answer ({failed[lost]}), which keeps CUDA from starting: "
            "see dmesg; a reset or a restart brings it back",
        )
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if not isinstance(wanted, str):
        places: list[Place] = [Place(n) for n in usable]
    else:
        by_uuid = _named(wanted, gpus, usable)
        places = _numbered(wanted, usable) if by_uuid is None else by_uuid
        if not places:
            return Absence(Obstacle.HIDDEN, _hidden(wanted, len(usable)))
        if by_uuid is not None:
            return _with_mig(places, gpus)
    order = environment.get("CUDA_DEVICE_ORDER")
    models = sorted({text(gpus[n], "name") for n in usable})
    if len(models) > 1 and order != "PCI_BUS_ID":
        return Absence(
            Obstacle.ORDER_UNKNOWN,
            f"the GPUs differ ({', '.join(models)}), and only CUDA knows which of them it finds "
            "fastest and counts first: set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    return _with_mig(places, gpus)


def _none(gpus: Sequence[Record]) -> Absence:
    if gpus:
        return Absence(
            Obstacle.NO_PERMISSION,
            f"this user or container may open none of the {len(gpus)} GPUs: see who may open "
            "/dev/nvidia0, or start the container with its GPUs (--gpus all)",
        )
    return Absence(
        Obstacle.NO_DEVICE,
        "the driver answers, but it has no GPU: see lspci and dmesg, or start the container with "
        "its GPUs (--gpus all)",
    )


def _hidden(wanted: str, number: int) -> str:
    shown = wanted if len(wanted) <= 40 else f"{wanted[:40]}..."
    return (
        f"CUDA_VISIBLE_DEVICES={shown!r} leaves none of the {number} GPUs: unset it, or name "
        "each once, by a number below that or by its UUID"
    )


def _numbered(wanted: str, usable: Sequence[int]) -> list[Place]:
    """Places by number; the first that is none ends the list, one named twice empties it."""
    found: list[Place] = []
    seen: set[int] = set()
    for part in wanted.split(","):
        match = _NUMBER.match(part)
        number = int(match[1]) if match else len(usable)
        if number in seen:
            return []
        if number >= len(usable):
            break
        seen.add(number)
        found.append(Place(usable[number]))
    return found


def _named(wanted: str, gpus: Sequence[Record], usable: Sequence[int]) -> list[Place] | None:
    """Places by UUID, or by a beginning that only one has; None when it is a list of numbers."""
    prefix = wanted[:4]
    if prefix not in {"GPU-", "MIG-"}:
        return None
    found: list[Place] = []
    for part in wanted.split(","):
        candidates = [place for n in usable for place in _matching(part, n, gpus[n])]
        if not part.startswith(prefix) or len(candidates) != 1:
            break
        if candidates[0] in found:
            return []
        found += candidates
    return found


def _matching(part: str, number: int, gpu: Record) -> list[Place]:
    """The places on one GPU that a UUID names."""
    uuid = text(gpu, "uuid")
    if part.startswith("GPU-"):
        return [Place(number)] if uuid.startswith(part) else []
    found = []
    for index, mig in enumerate(rows(gpu, "mig_devices")):
        # drivers before 470 name a slice by its GPU and the numbers of its instances
        old = f"MIG-{uuid}/{count(mig, 'gpu_instance')}/{count(mig, 'compute_instance')}"
        if text(mig, "uuid").startswith(part) or old == part:
            found.append(Place(number, index))
    return found


def _with_mig(places: list[Place], gpus: Sequence[Record]) -> list[Place] | Absence:
    """The places that CUDA counts: one slice alone where there is any, else whole GPUs."""
    whole = []
    for place in places:
        divided = (pair(gpus[place.gpu], "mig_mode") or (0, 0))[0] == 1
        if place.mig is not None:
            return [place]
        if divided and rows(gpus[place.gpu], "mig_devices"):
            return [Place(place.gpu, 0)]
        if not divided:
            whole.append(place)
    return whole or Absence(
        Obstacle.MIG_EMPTY,
        f"GPU {places[0].gpu} is in MIG mode and has no slice: make one (nvidia-smi mig -cgi), "
        "or leave that mode (nvidia-smi -mig 0)",
    )
