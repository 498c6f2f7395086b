"""Mapped memory as tensors: pages of the system, or of a file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.sizes import whole
from trivet.plugins.describe import shown

PAGE: Final = mmap.PAGESIZE
"""What every mapped address is a multiple of."""

_FULL: Final = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def anonymous(nbytes: int, *, tag: str) -> torch.Tensor:
    """Zeroed pages that go back to the system with the last tensor over them.

    Raises:
        OutOfMemory: the system does not map so much.
    """
    nbytes = whole(nbytes, "a buffer of {} bytes")
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    with no_room(nbytes, "the host", tag):
        return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)


def of_file(file: int, nbytes: int) -> torch.Tensor:
    """The first bytes of an open file; the mapping ends with the last tensor over it."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.uint8)


def create(path: Path, nbytes: int, *, tag: str) -> torch.Tensor:
    """A new file of so many zeros, mapped; all of it has room on its medium.

    Raises:
        OutOfMemory: it has not; there is no file.
        MemoryFault: any other failure of the system; there is no file.
    """
    nbytes = whole(nbytes, "a buffer of {} bytes")
    with no_room(nbytes, str(path.parent), tag):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # a file with holes would end the process at the first write that finds no room
            if nbytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, nbytes)
            else:
                os.ftruncate(file, nbytes)
            return of_file(file, nbytes)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor of the host, which must outlive what is returned.

    Raises:
        MemoryFault: it is none, or it sleeps: reading there would end the process.
    """
    given: object = tensor
    if not isinstance(given, torch.Tensor):
        raise MemoryFault(f"{shown(given)} is no tensor", fix="pass a tensor of the host")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        msg = f"a tensor on {tensor.device} in layout {tensor.layout} is no memory of the host"
        raise MemoryFault(msg, fix="copy it to the host first")
    if not tensor.numel():
        return memoryview(b"")
    if not tensor.is_contiguous() or not tensor.untyped_storage().nbytes():
        msg = f"{tensor.dtype} {list(tensor.shape)} has gaps, or no memory now"
        raise MemoryFault(msg, fix="make it contiguous, or wake it first")
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")


def refuse_fork(process: int, where: Path) -> None:
    """Refuses to write in a fork, which has the object but not the files.

    Raises:
        MemoryFault: it is one.
    """
    if os.getpid() != process:
        msg = f"{where} is of process {process}, this is a fork of it"
        raise MemoryFault(msg, fix="make an allocator in each process")


@contextmanager
def no_room(nbytes: int, where: str, tag: str) -> Iterator[None]:
    """Raises errors of trivet in place of the system's.

    Raises:
        OutOfMemory: there is no room, in any of the system's words.
        MemoryFault: it refuses for another reason.
    """
    try:
        yield
    except (OSError, OverflowError, ValueError) as error:
        full = isinstance(error, OverflowError) or getattr(error, "errno", None) in _FULL
        if not full:
            msg = f"{where} does not take {nbytes} bytes ({tag or 'no tag'}): {error}"
            fix = "a folder of yours that is there and can be written, and fewer open files"
            raise MemoryFault(msg, fix=fix) from error
        msg = f"{where} has no room for {nbytes} bytes ({tag or 'no tag'})"
        raise OutOfMemory(
            msg, requested_bytes=nbytes, tag=tag, fix="free something, or ask for less"
        ) from error
