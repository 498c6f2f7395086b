"""Asks NVML what is between the GPUs: buses, ends of NVLinks, direct access; starts no CUDA."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from trivet_cuda.discovery.record import Asker

_PCI: Final = Path("/sys/bus/pci/devices")
_MOST: Final = 64
_LINKS: Final = 36
_READ: Final = 0  # NVML_P2P_CAPS_INDEX_READ


def between(
    binding: Callable[[], Any] = lambda: import_module("pynvml"), pci: Path = _PCI
) -> dict[str, object]:
    """What NVML and the system say about each GPU and each pair, in NVML's order.

    ``devices`` has a row for each: ``bus``, ``numa`` (or None), ``remotes`` (a pair of kind and
    bus for each NVLink), ``read`` (the status of reading each other GPU, 0 is right) and
    ``ancestor`` (the level at which the buses meet). What was refused is ``{"error": NAME}``.

    Args:
        binding: gives the module ``pynvml``, or what stands in for it.
        pci: where the system lists the devices of the bus.
    """
    try:
        nvml = binding()
    except ImportError:
        return {"devices": []}
    ask = Asker(nvml)
    if ask("nvmlInit") is not None:
        return {"devices": []}
    try:
        number = ask("nvmlDeviceGetCount")
        count = min(number, _MOST) if type(number) is int else 0
        handles = [ask.raw("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        return {"devices": [_device(ask, handles, index, pci) for index in range(count)]}
    finally:
        ask("nvmlShutdown")


def _device(ask: Asker, handles: list[Any], index: int, pci: Path) -> dict[str, object]:
    mine = handles[index]
    bus = ask("nvmlDeviceGetPciInfo", mine, field="busId")
    others = [None if i == index else other for i, other in enumerate(handles)]
    return {
        "bus": bus,
        "numa": _numa(bus, pci),
        "remotes": _remotes(ask, mine),
        "read": [
            None if other is None else ask("nvmlDeviceGetP2PStatus", mine, other, _READ)
            for other in others
        ],
        "ancestor": [
            None if other is None else ask("nvmlDeviceGetTopologyCommonAncestor", mine, other)
            for other in others
        ],
    }


def _remotes(ask: Asker, handle: object) -> list[object]:
    """What is at the other end of each NVLink that is up: kind and bus."""
    found: list[object] = []
    for link in range(_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        if isinstance(state, dict):
            break
        if state == 1:
            kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            found.append([kind, ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link,
                                    field="busId")])  # fmt: skip
    return found


def _numa(bus: object, pci: Path) -> int | None:
    """The NUMA node of a bus address; the system has it in small letters, with a short domain."""
    if not isinstance(bus, str):
        return None
    domain, _, rest = bus.strip().lower().partition(":")
    try:
        text = (pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None
