"""Buffers that another process of the same user can open: files without a name, in memory."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet_cpu.memory.pages import PAGE, Pages
from trivet_cpu.memory.room import name_of, refuse_beyond, refuse_odd

if TYPE_CHECKING:
    from trivet.contracts.memory import Traits

KIND: Final = "shm"
_FOREIGN: Final = "these bytes are no export of shared host memory"


class SharedMemory:
    """An allocator of shared pages, with suspension and export.

    An exported buffer is opened through ``/proc``, so both processes see the same ``/proc`` and are
    of one user. The memory lives until its owner gave it back and every opener closed it.
    """

    preserves: frozenset[str] = frozenset({"address", "graphs"})

    def __init__(self) -> None:
        self._live: dict[int, tuple[Pages, int, torch.Tensor]] = {}
        self._opened: dict[int, torch.Tensor] = {}
        self._suspended: set[int] = set()

    @cached_property
    def _traits(self) -> Traits:
        from trivet.contracts.memory import Tier, Traits

        return Traits(
            torch.device("cpu"), Tier.SHARED, PAGE, host_visible=True, zeroed=True,
            exportable=frozenset({KIND}),
        )  # fmt: skip

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A zeroed buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        refuse_odd(nbytes)
        refuse_beyond(nbytes, tag)
        # a name for people, of which the system takes 249 bytes and no zero
        name = f"trivet {tag}".encode("ascii", "backslashreplace").replace(b"\0", b"")[:200]
        try:
            fd = os.memfd_create(name.decode("ascii"), os.MFD_CLOEXEC)
        except OSError as error:
            msg = f"no shared memory of {nbytes} bytes ({tag or 'no tag'}): {error}"
            fix = "raise the limit of open files, or free a shared buffer"
            raise OutOfMemory(msg, requested_bytes=nbytes, tag=tag, fix=fix) from error
        try:
            os.ftruncate(fd, max(PAGE, -(-nbytes // PAGE) * PAGE))
            pages = Pages(nbytes or 1, fd=fd)
        except (OSError, OverflowError) as error:
            os.close(fd)
            msg = f"no shared memory of {nbytes} bytes ({tag or 'no tag'}): {error}"
            raise OutOfMemory(msg, requested_bytes=nbytes, tag=tag, fix="ask for less") from error
        except BaseException:
            os.close(fd)
            raise
        tensor = pages.tensor()[:nbytes]
        self._live[id(tensor)] = pages, fd, tensor
        return tensor

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Take a buffer back; who has it open keeps the memory until it closes it."""
        _, fd, _ = self._known(buffer)
        del self._live[id(buffer)]
        self._suspended.discard(id(buffer))
        os.close(fd)

    def suspend(self, buffer: torch.Tensor) -> None:
        """Gives its memory back, also in the eyes of other processes, and keeps its address.

        Raises:
            MemoryFault: the system refuses; it stays as it was.
        """
        pages, _, _ = self._known(buffer)
        if id(buffer) not in self._suspended:
            pages.give_back()
            self._suspended.add(id(buffer))

    def resume(self, buffer: torch.Tensor) -> None:
        """Gives it memory again, all zeros.

        Raises:
            OutOfMemory: there is no room; it stays suspended.
        """
        pages, _, _ = self._known(buffer)
        if id(buffer) in self._suspended:
            refuse_beyond(pages.size, "a suspended buffer")
            buffer.zero_()
            self._suspended.discard(id(buffer))

    def export(self, buffer: torch.Tensor, kind: str) -> bytes:
        """Where another process finds it.

        Raises:
            MemoryFault: there is no such kind.
        """
        _, fd, _ = self._known(buffer)
        _refuse_other(kind)
        said = {"pid": os.getpid(), "fd": fd, "inode": os.fstat(fd).st_ino}
        return json.dumps(said | {"nbytes": buffer.numel()}).encode()

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        """The buffer of another process.

        Raises:
            MemoryFault: it is no such export, or its owner has ended or given it back.
        """
        _refuse_other(kind)
        said = _parsed(exported)
        path = f"/proc/{said['pid']}/fd/{said['fd']}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            msg = f"the exported buffer at {path} cannot be opened: {error}"
            fix = "its owner must live, be of the same user and see the same /proc"
            raise MemoryFault(msg, fix=fix) from error
        try:
            found = os.fstat(fd)
            if found.st_ino != said["inode"] or found.st_size < said["nbytes"]:
                msg = f"{path} is another file by now: its owner gave the buffer back"
                raise MemoryFault(msg, fix="have it exported again")
            tensor = Pages(said["nbytes"] or 1, fd=fd).tensor()[: said["nbytes"]]
        finally:
            os.close(fd)  # the mapping stays
        self._opened[id(tensor)] = tensor
        return tensor

    def close(self, buffer: torch.Tensor) -> None:
        """Give up what ``open`` returned; its mapping ends with the last view of it.

        Raises:
            InvalidBuffer: it was not opened here, or was closed before.
        """
        if self._opened.pop(id(buffer), None) is None:
            raise InvalidBuffer("this tensor was not opened here", fix="close it once")

    def _known(self, buffer: torch.Tensor) -> tuple[Pages, int, torch.Tensor]:
        known = self._live.get(id(buffer))
        if known is None:
            msg = f"no live shared buffer is this {name_of(buffer)}"
            raise InvalidBuffer(msg, fix="give back the very tensor that allocate returned, once")
        return known


def _refuse_other(kind: str) -> None:
    if kind != KIND:
        msg = f"shared host memory is not exported as {kind!r}"
        raise MemoryFault(msg, fix=f"the kinds of an allocator stand in its traits: {KIND}")


def _parsed(exported: bytes) -> dict[str, int]:
    try:
        said: Any = json.loads(exported)
        found = {name: said[name] for name in ("pid", "fd", "inode", "nbytes")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MemoryFault(_FOREIGN, fix="pass on what export returned, unchanged") from error
    if any(type(n) is not int or n < 0 for n in found.values()):
        raise MemoryFault(_FOREIGN, fix="pass on what export returned, unchanged")
    return found
