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

from trivet.errors import OutOfMemory

PAGE: Final = mmap.PAGESIZE
"""What every mapped address is a multiple of."""

_FULL: Final = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def anonymous(nbytes: int, *, tag: str) -> torch.Tensor:
    """Zeroed pages that go back to the system with the last tensor over them.

    Raises:
        OutOfMemory: the system does not map so much.
    """
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
    """
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
    """The memory of a contiguous tensor of the host, which must outlive what is returned."""
    if not tensor.numel():
        return memoryview(b"")
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")


@contextmanager
def no_room(nbytes: int, where: str, tag: str) -> Iterator[None]:
    """Raises ``OutOfMemory`` in place of the system's ways to say that there is no room."""
    try:
        yield
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno not in _FULL:
            raise
        msg = f"{where} has no room for {nbytes} bytes ({tag or 'no tag'})"
        raise OutOfMemory(
            msg, requested_bytes=nbytes, tag=tag, fix="free something, or ask for less"
        ) from error
