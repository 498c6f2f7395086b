"""Virtual memory of the CUDA driver, called directly; every answer is checked and typed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

from trivet.errors import MemoryFault, OutOfMemory

VIRTUAL_MEMORY: Final = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
FILE_DESCRIPTORS: Final = 103  # ..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED

_OUT_OF_MEMORY, _DEINITIALIZED, _ON_DEVICE, _PINNED, _FD, _READ_WRITE = 2, 4, 1, 1, 1, 3
_RECOMMENDED: Final = 1  # granularity

_DOES: Final = {
    "cuMemAddressReserve": "reserve addresses",
    "cuMemCreate": "make memory",
    "cuMemMap": "map memory to its address",
    "cuMemSetAccess": "allow access",
    "cuMemUnmap": "unmap memory",
    "cuMemRelease": "give memory back",
    "cuMemAddressFree": "free addresses",
    "cuMemExportToShareableHandle": "export memory",
    "cuMemImportFromShareableHandle": "open exported memory",
    "cuCtxSynchronize": "wait for the device",
}


class Location(ctypes.Structure):
    """``CUmemLocation``."""

    _fields_ = (("type", c_int), ("id", c_int))


class Property(ctypes.Structure):
    """``CUmemAllocationProp``; its flags are eight bytes that stay 0."""

    _fields_ = (
        ("type", c_int), ("handle_types", c_int), ("location", Location),
        ("win32", c_void_p), ("flags", c_uint64),
    )  # fmt: skip


class Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", Location), ("flags", c_int))


class DriverError(MemoryFault):
    """A call of the driver failed; ``number`` is its ``CUresult``."""

    code = MemoryFault.code
    cause = MemoryFault.cause

    def __init__(self, what: str, *, number: int, fix: str = "") -> None:
        self.number = number
        super().__init__(what, fix=fix)


class Driver:
    """The calls that virtual memory needs, of one loaded ``libcuda``; the first one starts it.

    Args:
        library: what ``ctypes`` loaded.

    Raises:
        MemoryFault: it is too old for virtual memory.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._contexts: dict[int, c_void_p] = {}
        self._started = False
        missing = [name for name in _DOES if not hasattr(library, name)]
        if missing:
            msg = f"the driver's library has no {', '.join(missing)}"
            raise MemoryFault(msg, fix="install a driver for CUDA 11.2 or newer")

    @staticmethod
    @cache
    def load(name: str = "libcuda.so.1") -> Driver:
        """The driver of this machine.

        Raises:
            MemoryFault: its library is not here, or too old for virtual memory.
        """
        try:
            return Driver(ctypes.CDLL(name))
        except OSError as error:
            msg = f"the driver's library cannot be loaded: {error}"
            raise MemoryFault(msg, fix="install a driver for CUDA 11.2 or newer") from error

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        """Makes the GPU's primary context, which is torch's, the current one; puts back what was.

        Args:
            index: as the driver counts, which is as torch counts.
        """
        context = self._contexts.get(index)
        if context is None:
            context = c_void_p()
            self._check("cuDevicePrimaryCtxRetain", byref(context), self.device(index))
            self._contexts[index] = context
        self._check("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._check("cuCtxPopCurrent_v2", byref(c_void_p()))

    def device(self, index: int) -> int:
        """The driver's handle of a GPU."""
        found = c_int()
        self._check("cuDeviceGet", byref(found), c_int(index))
        return found.value

    def attribute(self, index: int, which: int) -> int:
        """One attribute of a GPU."""
        found = c_int()
        self._check("cuDeviceGetAttribute", byref(found), c_int(which), self.device(index))
        return found.value

    def free_total(self) -> tuple[int, int]:
        """Free and total bytes of the current GPU."""
        free, total = c_size_t(), c_size_t()
        self._check("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Waits for everything that the current GPU was given."""
        self._check("cuCtxSynchronize")

    def granularity(self, made: Property) -> int:
        """What sizes and addresses of such memory are multiples of."""
        found = c_size_t()
        self._check("cuMemGetAllocationGranularity", byref(found), byref(made), _RECOMMENDED)
        return found.value

    def reserve(self, nbytes: int, alignment: int) -> int:
        """Addresses without memory."""
        found = c_uint64()
        size, least = c_size_t(nbytes), c_size_t(alignment)
        self._check("cuMemAddressReserve", byref(found), size, least, c_uint64(0), c_uint64(0))
        return found.value

    def unreserve(self, address: int, nbytes: int) -> None:
        """Gives addresses back."""
        self._check("cuMemAddressFree", c_uint64(address), c_size_t(nbytes))

    def create(self, nbytes: int, made: Property, tag: str) -> int:
        """Memory without an address.

        Raises:
            OutOfMemory: the GPU has no room.
        """
        found = c_uint64()
        number = self._call("cuMemCreate", byref(found), c_size_t(nbytes), byref(made), c_uint64(0))
        if number == _OUT_OF_MEMORY:
            free, _ = self.free_total()
            raise OutOfMemory(
                f"cuda:{made.location.id} has no room for {nbytes} bytes ({tag or 'no tag'})",
                requested_bytes=nbytes,
                free_bytes=free,
                tag=tag,
                retryable=nbytes <= free,
                fix="free something (torch.cuda.empty_cache() gives torch's cache back)",
            )
        self._judge("cuMemCreate", number)
        return found.value

    def release(self, handle: int) -> None:
        """Gives memory back, at once where it is not mapped and not open elsewhere."""
        self._check("cuMemRelease", c_uint64(handle))

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Puts memory at an address; nobody may use it yet."""
        size = c_size_t(nbytes)
        self._check("cuMemMap", c_uint64(address), size, c_size_t(0), c_uint64(handle), c_uint64(0))

    def allow(self, address: int, nbytes: int, indices: Sequence[int]) -> None:
        """Lets GPUs read and write at an address."""
        rows = (Access * len(indices))(
            *(Access(Location(_ON_DEVICE, i), _READ_WRITE) for i in indices)
        )
        count = c_size_t(len(indices))
        self._check("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), rows, count)

    def unmap(self, address: int, nbytes: int) -> None:
        """Takes the memory of an address away."""
        self._check("cuMemUnmap", c_uint64(address), c_size_t(nbytes))

    def export(self, handle: int) -> int:
        """A new file descriptor that stands for memory."""
        found = c_int(-1)
        arguments = byref(found), c_uint64(handle), c_int(_FD), c_uint64(0)
        self._check("cuMemExportToShareableHandle", *arguments)
        return found.value

    def adopt(self, fd: int) -> int:
        """The memory that a file descriptor stands for."""
        found = c_uint64()
        self._check("cuMemImportFromShareableHandle", byref(found), c_void_p(fd), c_int(_FD))
        return found.value

    def _call(self, name: str, *arguments: Any) -> int:
        if not self._started:
            self._started = True
            self._check("cuInit", 0)
        return int(getattr(self._library, name)(*arguments))

    def _check(self, name: str, *arguments: Any) -> None:
        self._judge(name, self._call(name, *arguments))

    def _judge(self, name: str, number: int) -> None:
        if number == 0:
            return
        text = c_char_p()
        said = self._call("cuGetErrorString", c_int(number), byref(text))
        words = (text.value or b"").decode() if said == 0 else "an unknown error"
        what = f"the driver could not {_DOES.get(name, 'answer')}: {name} gives {number}, {words}"
        if number == _OUT_OF_MEMORY:
            raise OutOfMemory(what, requested_bytes=0, fix="free memory of the GPU, or of the host")
        raise DriverError(
            what,
            number=number,
            fix="an error of an earlier kernel shows here as well: CUDA_LAUNCH_BLOCKING=1 finds it",
        )


def ended(error: MemoryFault) -> bool:
    """Whether the driver has shut down already, and took all memory with it."""
    return isinstance(error, DriverError) and error.number == _DEINITIALIZED


def property_of(index: int, *, exportable: bool) -> Property:
    """Memory on one GPU, which other processes can open or not."""
    return Property(_PINNED, _FD if exportable else 0, Location(_ON_DEVICE, index), None, 0)


def absence(name: str = "libcuda.so.1") -> str:
    """Why the driver's library has no virtual memory for us; empty when it has.

    The driver is not started: a process that only asks may still fork.
    """
    try:
        Driver.load(name)
    except MemoryFault as error:
        return error.what
    return ""
