"""How the GPUs are connected: NVLink and PCIe as NVML tells them; CUDA starts for probes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import combinations
from typing import Any, Final

import torch

from trivet.contracts.topology import Link, Node
from trivet_cuda.discovery.answers import NOTHING, Record, amount, count, rows, section, text
from trivet_cuda.discovery.between import between
from trivet_cuda.discovery.record import gather
from trivet_cuda.discovery.visible import Place, visible

_LANE: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one PCIe lane in one direction, by generation, after its encoding."""

_MEET: Final = {
    0: "on one board", 10: "in one switch", 20: "through several switches",
    30: "through one host bridge", 40: "in one NUMA node", 50: "between NUMA nodes",
}  # fmt: skip
_GPU, _SWITCH = 0, 2  # NVML's kinds of the other end of an NVLink
_READY: Final = 3  # of the fabric of switches
_UP: Final = 1


class CudaTopology:
    """What connects the GPUs of this machine.

    Args:
        record: the answers of discovery; None asks for them when they are needed.
        pairs: those of ``between``; None asks, too.
    """

    def __init__(self, record: Record | None = None, pairs: Record | None = None) -> None:
        self._given = (record, pairs)

    @cached_property
    def _record(self) -> Record:
        return gather() if self._given[0] is None else self._given[0]

    @cached_property
    def _between(self) -> list[Record]:
        return rows(between() if self._given[1] is None else self._given[1], "devices")

    @cached_property
    def _gpus(self) -> list[Record]:
        return rows(section(self._record, "nvml"), "devices")

    @cached_property
    def _places(self) -> Sequence[Place]:
        """The GPU, or slice of one, of each of torch's indices."""
        found = visible(self._record, self._gpus)
        return found if isinstance(found, list) else ()

    def nodes(self) -> Sequence[Node]:
        """The visible GPUs, with the NUMA node of each bus where the system tells it."""
        found = []
        for index, place in enumerate(self._places):
            numa = count(self._pair(place.gpu), "numa")
            gpu = self._gpus[place.gpu]
            slices = rows(gpu, "mig_devices")
            told = gpu if place.mig is None else slices[place.mig]
            near = "" if numa is None else f"numa:{numa}"
            found.append(Node(f"cuda:{index}", "device", near, (), amount(told, "memory_bytes")))
        return found

    def links(self) -> Sequence[Link]:
        """NVLink where it connects two GPUs, and PCIe between any two; slices have neither."""
        whole = [(i, place.gpu) for i, place in enumerate(self._places) if place.mig is None]
        found = []
        for (i, a), (j, b) in combinations(whole, 2):
            ends = (f"cuda:{i}", f"cuda:{j}")
            found += [Link(*ends, *told) for told in (self._nvlink(a, b), self._pcie(a, b)) if told]
        return found

    def reaches(self, reader: int, owner: int) -> bool:
        """Whether NVML says so; not so where it says nothing, and for slices."""
        if not (0 <= reader < len(self._places) and 0 <= owner < len(self._places)):
            return False
        mine, theirs = self._places[reader], self._places[owner]
        if mine.mig is not None or theirs.mig is not None:
            return False
        return mine.gpu == theirs.gpu or _at(self._pair(mine.gpu), "read", theirs.gpu) == 0

    def read(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """A kernel on the device of ``out`` loads ``inp``; a copy could go through the host."""
        _open_ways(out.device, inp.device)
        torch.bitwise_or(_words(_seen(inp, out.device)), 0, out=_words(out))
        torch.cuda.synchronize(out.device)

    def write(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """A kernel on the device of ``inp`` stores it into ``out``."""
        _open_ways(inp.device, out.device)
        torch.bitwise_or(_words(inp), 0, out=_words(_seen(out, inp.device)))
        torch.cuda.synchronize(inp.device)

    def _pair(self, gpu: int) -> Record:
        return self._between[gpu] if gpu < len(self._between) else NOTHING

    def _nvlink(self, a: int, b: int) -> tuple[str, float | None, bool, int] | None:
        """Kind, rate, whether it was measured, and hops; None where NVLink does not join them."""
        mine, theirs = self._remotes(a), self._remotes(b)
        hops = 1
        links = sum(1 for kind, bus in mine if kind == _GPU and bus and bus == self._bus(b))
        if not links:
            hops = 2
            links = min(sum(kind == _SWITCH for kind, _ in ends) for ends in (mine, theirs))
        if not links and not mine and not theirs and self._switched(a) and self._switched(b):
            links = min(_links_up(self._gpus[a]), _links_up(self._gpus[b]))
        if not links:
            return None
        speeds = [amount(self._gpus[gpu], "nvlink_mbps") for gpu in (a, b)]
        known = [speed for speed in speeds if speed is not None]
        rate = links * min(known) * 1e6 if len(known) == 2 else None
        return f"NVLink x{links}" + (" by switch" if hops == 2 else ""), rate, False, hops

    def _remotes(self, gpu: int) -> list[tuple[object, object]]:
        told = self._pair(gpu).get("remotes")
        ends = told if isinstance(told, list) else []
        return [(one[0], _short(one[1])) for one in ends if type(one) is list and len(one) == 2]

    def _bus(self, gpu: int) -> str:
        return _short(self._pair(gpu).get("bus"))

    def _switched(self, gpu: int) -> bool:
        return count(self._gpus[gpu], "fabric") == _READY

    def _pcie(self, a: int, b: int) -> tuple[str, float, bool, int | None] | None:
        found = []
        for gpu in (self._gpus[a], self._gpus[b]):
            generation, width = amount(gpu, "pcie_generation"), amount(gpu, "pcie_width")
            if generation not in _LANE or width is None:
                return None
            found.append((_LANE[generation] * width, f"PCIe {generation} x{width}"))
        rate, kind = min(found)
        level = _at(self._pair(a), "ancestor", b)
        meet = _MEET.get(level, "") if type(level) is int else ""
        return f"{kind} {meet}".strip(), rate, False, 2 if level == 10 else None


def _links_up(gpu: Record) -> int:
    states = gpu.get("nvlinks")
    return sum(1 for state in states if state == _UP) if isinstance(states, list) else 0


def _at(row: Mapping[str, Any], key: str, index: int) -> object:
    found = row.get(key)
    return found[index] if isinstance(found, list) and index < len(found) else None


def _short(bus: object) -> str:
    """A bus address with a domain of four digits, in small letters: NVML has it in two ways."""
    domain, colon, rest = text({"bus": bus}, "bus").lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _words(x: torch.Tensor) -> torch.Tensor:
    """Its bytes eight at a time where that comes out even: a thread moves as much as it can."""
    even = x.dim() == 1 and x.nbytes % 8 == 0 and x.data_ptr() % 8 == 0 and x.is_contiguous()
    return x.view(torch.int64) if even else x


@cache  # once a pair: it would count in what is timed
def _open_ways(device: torch.device, other: torch.device) -> None:
    """Have torch open each device's memory to the other, as it does before its own copies.

    Raises:
        RuntimeError: CUDA offers no direct access.
    """
    if not torch.cuda.can_device_access_peer(device, other):
        msg = f"CUDA offers no direct access of {device} to {other}"
        raise RuntimeError(msg)
    for one, another in ((device, other), (other, device)):
        torch.zeros(1, device=one).copy_(torch.zeros(1, device=another))
        torch.cuda.synchronize(one)
        torch.cuda.synchronize(another)


def _seen(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The bytes of a tensor as one of another device, whose kernels then reach over the link."""
    storage = torch._C._construct_storage_from_data_pointer(x.data_ptr(), device, x.nbytes)  # noqa: SLF001
    found = torch.empty(0, dtype=x.dtype, device=device)
    return found.set_(storage, 0, x.shape, x.stride())
