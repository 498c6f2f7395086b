"""A file descriptor on its way to another process of the same user, without a socket."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from trivet.errors import MemoryFault

_GETFD: Final = 438  # pidfd_getfd: the number is the same on x86-64 and arm64


def pack(fd: int, nbytes: int, size: int) -> bytes:
    """Where a descriptor is found, as long as its owner has it open."""
    said = {"pid": os.getpid(), "fd": fd, "nbytes": nbytes, "size": size}
    return json.dumps(said).encode()


@contextmanager
def unpack(exported: bytes) -> Iterator[tuple[int, int, int]]:
    """A descriptor of our own for the same file, bytes of the buffer, and of its memory.

    Raises:
        MemoryFault: these bytes are no export, its owner has ended, or the system forbids it.
    """
    try:
        said: Any = json.loads(exported)
        pid, theirs, nbytes, size = (int(said[name]) for name in ("pid", "fd", "nbytes", "size"))
    except (ValueError, TypeError, KeyError) as error:
        msg = "these bytes are no export of device memory"
        raise MemoryFault(msg, fix="pass on what export returned, unchanged") from error
    fd = os.dup(theirs) if pid == os.getpid() else _taken(pid, theirs)
    try:
        yield fd, nbytes, size
    finally:
        os.close(fd)


def _taken(pid: int, theirs: int) -> int:
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        msg = f"process {pid}, which exported this memory, cannot be reached: {error}"
        raise MemoryFault(msg, fix="it must live until the memory was opened") from error
    try:
        library = ctypes.CDLL(None, use_errno=True)
        fd = int(library.syscall(ctypes.c_long(_GETFD), process, theirs, 0))
        if fd < 0:
            why = os.strerror(ctypes.get_errno())
            msg = f"the system does not hand over a file of process {pid}: {why}"
            fix = (
                "both must be of one user, and the opener an ancestor of the owner, unless "
                "/proc/sys/kernel/yama/ptrace_scope is 0 or the owner allowed it by prctl"
            )
            raise MemoryFault(msg, fix=fix)
        return fd
    finally:
        os.close(process)
