"""Buffers that keep their address while their memory comes and goes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from trivet.contracts.memory import MemoryInfo, Stats, Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault
from trivet_cuda.memory import passing
from trivet_cuda.memory.driver import (
    FILE_DESCRIPTORS,
    VIRTUAL_MEMORY,
    Driver,
    Property,
    ended,
    property_of,
)
from trivet_cuda.memory.torch_pools import PinnedMemory

KIND: Final = "fd"


@dataclass(slots=True, eq=False)
class Region:
    """Addresses of one buffer.

    Args:
        address: the first.
        size: bytes, as the driver rounds them.
        handle: its memory; None while it is suspended.
        tensor: over all of it.
        fd: the file that stands for its memory where it was exported, which holds it, too.
    """

    address: int
    size: int
    handle: int | None
    tensor: torch.Tensor | None = None
    fd: int | None = None

    def forget_export(self) -> None:
        """Closes the file; who opened the memory keeps it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Span:
    """A run of device memory as torch reads it; the tensor over it keeps this object alive."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None,
            "version": 3,
        }  # fmt: skip


def view(span: Span, device: torch.device) -> torch.Tensor:
    """A ``uint8`` tensor over a span, without a copy.

    Raises:
        MemoryFault: torch made a copy.
    """
    interface: dict[str, Any] = span.__cuda_array_interface__
    tensor = torch.as_tensor(span, device=device)
    if tensor.data_ptr() != interface["data"][0]:
        msg = f"torch copied memory of {device} instead of showing it"
        raise MemoryFault(msg, fix="report the version of torch")
    return tensor


class VirtualMemory:
    """An allocator over the driver's virtual memory: suspension keeps addresses and graphs.

    Sizes are rounded up to the driver's granularity (2 MiB as a rule), so that it is for few large
    buffers. Before memory is taken away the device is waited for. It is not for the legacy IPC of
    ``cudaMalloc`` memory, which refuses such addresses; another process opens it as ``"fd"``.
    The driver is started by the first call, not before, so that a process may fork until then.

    Args:
        index: of the GPU, as torch counts.
        driver: the loaded driver.
        peers: other GPUs that may read and write it.
        show: makes a tensor over addresses.
    """

    preserves: frozenset[str] = frozenset({"address", "graphs"})

    def __init__(
        self,
        index: int,
        driver: Driver,
        *,
        peers: Sequence[int] = (),
        show: Callable[[Span, torch.device], torch.Tensor] = view,
    ) -> None:
        self._index, self._driver, self._show = index, driver, show
        self._device = torch.device("cuda", index)
        self._readers = (index, *peers)
        self._live: dict[int, Region] = {}
        self._opened: dict[int, Region] = {}
        self._late: deque[Region] = deque()
        self._lock = threading.Lock()
        self._most = 0

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        exportable = self._property.handle_types != 0
        return Traits(
            self._device, Tier.DEVICE, min(self.granularity, 1 << 16),
            exportable=frozenset({KIND}) if exportable else frozenset(),
        )  # fmt: skip

    @cached_property
    def granularity(self) -> int:
        """What sizes and addresses are multiples of."""
        return self._driver.granularity(self._property)

    @cached_property
    def _property(self) -> Property:
        """What the driver is asked for; the first look at the driver, which starts it."""
        if not self._driver.attribute(self._index, VIRTUAL_MEMORY):
            msg = f"the driver has no virtual memory on {self._device}"
            raise MemoryFault(msg, fix="trivet.memory.open(device.torch): torch's allocator serves")
        files = self._driver.attribute(self._index, FILE_DESCRIPTORS)
        return property_of(self._index, exportable=bool(files))

    def tiers(self) -> Mapping[Tier, object]:
        """The allocator of each tier that this package serves."""
        return {Tier.DEVICE: self, Tier.PINNED: PinnedMemory()}

    def info(self) -> MemoryInfo:
        """Free and total bytes, as the driver says."""
        with self._driver.on(self._index):
            free, total = self._driver.free_total()
        return MemoryInfo(total_bytes=total, free_bytes=free, source="the CUDA driver")

    def stats(self) -> Stats:
        """What its buffers have of the device's memory: whole pages, nothing while suspended."""
        with self._lock:
            used, most = self._counted(), self._most
        return Stats(used, used, most, most)

    def _counted(self) -> int:
        """Bytes that live buffers have now; the lock is held."""
        used = sum(r.size for r in self._live.values() if r.handle is not None)
        self._most = max(self._most, used)
        return used

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        self.trim(0)
        if not nbytes:
            tensor = torch.empty(0, dtype=torch.uint8, device=self._device)
            region = Region(0, 0, None, tensor)
        else:
            size = -(-nbytes // self.granularity) * self.granularity
            with self._driver.on(self._index):
                region = self._mapped(size, lambda: self._driver.create(size, self._property, tag))
                tensor = self._shown(region, nbytes)
        with self._lock:
            self._live[id(tensor)] = region
            self._counted()
        return tensor

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Take a buffer back, suspended or not; nothing happens where the driver has shut down.

        While a graph is captured the device cannot be waited for: the memory goes back at the next
        ``allocate`` or ``trim`` after it.

        Raises:
            InvalidBuffer: it is none of the live ones.
            MemoryFault: the driver refuses a step; all others were done.
        """
        with self._lock:
            region = self._live.pop(id(buffer), None)
        if region is None:
            raise _foreign(buffer)
        self._drop(region)

    def trim(self, nbytes: int) -> int:
        """Gives back what had to be put off while a graph was captured; nothing else is cached."""
        del nbytes
        given = 0
        for _ in range(len(self._late)):
            region = self._late.popleft()
            held = len(self._late)
            self._drop(region)
            given += 0 if len(self._late) > held or region.handle is None else region.size
        return given

    def suspend(self, buffer: torch.Tensor) -> None:
        """Waits for the device, gives the memory back and keeps the address.

        What another process has open stays there until it is closed, apart from this buffer.

        Raises:
            MemoryFault: the driver refuses; it stays as it was.
        """
        region = self._region(buffer)
        handle = region.handle
        if handle is None:
            return
        driver = self._driver
        with driver.on(self._index):
            driver.synchronize()
            driver.unmap(region.address, region.size)
            try:
                driver.release(handle)
            except MemoryFault:
                driver.map(region.address, region.size, handle)
                driver.allow(region.address, region.size, self._readers)
                raise
        region.handle = None
        region.forget_export()

    def resume(self, buffer: torch.Tensor) -> None:
        """Gives it memory again, with any contents, at the same address.

        Raises:
            OutOfMemory: there is no room; it stays suspended.
            MemoryFault: the driver refuses; it stays suspended.
        """
        region = self._region(buffer)
        if region.handle is not None or not region.size:
            return
        driver = self._driver
        with driver.on(self._index), ExitStack() as undo:
            handle = driver.create(region.size, self._property, "a suspended buffer")
            undo.callback(driver.release, handle)
            driver.map(region.address, region.size, handle)
            undo.callback(driver.unmap, region.address, region.size)
            driver.allow(region.address, region.size, self._readers)
            undo.pop_all()
        with self._lock:
            region.handle = handle
            self._counted()

    def export(self, buffer: torch.Tensor, kind: str) -> bytes:
        """What another process of this user needs to open it; this process must live until then.

        Raises:
            MemoryFault: it is not exported so, or suspended.
        """
        region = self._region(buffer)
        exportable = self.traits().exportable
        if kind not in exportable:
            msg = f"memory of {self._device} with an address of its own is not exported as {kind!r}"
            can = ", ".join(sorted(exportable)) or "nothing: the driver cannot"
            raise MemoryFault(msg, fix=f"what it is exported as: {can}")
        if region.handle is None:
            msg = "a buffer without memory cannot be exported"
            raise MemoryFault(msg, fix="resume it first; one of no bytes has nothing to open")
        if region.fd is None:
            with self._driver.on(self._index):
                region.fd = self._driver.export(region.handle)
        return passing.pack(region.fd, buffer.numel(), region.size)

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        """The buffer of another process.

        Raises:
            MemoryFault: it is no such export, its owner has ended, or the system forbids it.
        """
        if kind != KIND:
            msg = f"nothing is opened as {kind!r} here"
            raise MemoryFault(msg, fix=f"the kind is {KIND}")
        with passing.unpack(exported) as (fd, nbytes, size), self._driver.on(self._index):
            region = self._mapped(size, lambda: self._driver.adopt(fd))
            tensor = self._shown(region, nbytes)
        with self._lock:
            self._opened[id(tensor)] = region
        return tensor

    def close(self, buffer: torch.Tensor) -> None:
        """Give up what ``open`` returned.

        Raises:
            InvalidBuffer: it was not opened here, or was closed before.
        """
        with self._lock:
            region = self._opened.pop(id(buffer), None)
        if region is None:
            raise InvalidBuffer("this tensor was not opened here", fix="close it once")
        self._drop(region)

    def _mapped(self, size: int, memory: Callable[[], int]) -> Region:
        """Addresses with memory that may be used; what was taken is given back on failure."""
        driver = self._driver
        with ExitStack() as undo:
            address = driver.reserve(size, self.granularity)
            undo.callback(driver.unreserve, address, size)
            handle = memory()
            undo.callback(driver.release, handle)
            driver.map(address, size, handle)
            undo.callback(driver.unmap, address, size)
            driver.allow(address, size, self._readers)
            undo.pop_all()
        return Region(address, size, handle)

    def _shown(self, region: Region, nbytes: int) -> torch.Tensor:
        try:
            region.tensor = self._show(Span(region.address, nbytes, self), self._device)
        except BaseException:
            self._drop(region)
            raise
        return region.tensor

    def _drop(self, region: Region) -> None:
        """Gives memory and addresses back: every step, whatever becomes of the one before.

        Where the device cannot be waited for (a capture is under way), all of it is put off.
        """
        region.forget_export()
        if not region.size:
            return
        driver, handle = self._driver, region.handle
        failed: MemoryFault | None = None
        with driver.on(self._index):
            try:
                driver.synchronize()
            except MemoryFault as error:
                if not ended(error):
                    self._late.append(region)
                return
            steps: list[Callable[[], None]] = []
            if handle is not None:
                steps.append(lambda: driver.unmap(region.address, region.size))
                steps.append(lambda: driver.release(handle))
            steps.append(lambda: driver.unreserve(region.address, region.size))
            for step in steps:
                try:
                    step()
                except MemoryFault as error:
                    failed = failed or error
        if failed is not None and not ended(failed):
            raise failed

    def _region(self, buffer: torch.Tensor) -> Region:
        with self._lock:
            region = self._live.get(id(buffer))
        if region is None:
            raise _foreign(buffer)
        return region


def _foreign(buffer: torch.Tensor) -> InvalidBuffer:
    msg = f"no live buffer of virtual memory is this tensor (uint8 [{buffer.numel()}])"
    return InvalidBuffer(msg, fix="give back the very tensor that allocate returned, once")
