"""Host memory that other processes open by name.

A segment is a file of a memory file system where there is one. Its owner holds a lock for as long
as it lives, which the system takes away from a process that ends in whatever way: others see by
it that an owner is gone, and the next owner removes what it left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import tempfile
import weakref
from pathlib import Path
from typing import Final

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault
from trivet.memory.tiers import mapping

KIND: Final = "shm"
"""How a segment is exported."""

_NAME: Final = re.compile(r"trivet-[0-9a-f]{16}")
_PART: Final = re.compile(r"[0-9]{1,18}")


def shared_folder() -> Path:
    """Where segments are: in memory where the system has such a folder."""
    memory = Path("/dev/shm")  # noqa: S108  # the system's memory file system, not a scratch folder
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


class SharedAllocator:
    """Allocates segments, exports them, and opens those of other processes.

    Args:
        folder: where segments are; the same one for all processes that share.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = shared_folder() if folder is None else Path(folder)
        self._process = os.getpid()
        self.name = f"trivet-{secrets.token_hex(8)}"
        with mapping.no_room(0, str(self.folder), "a lock of segments"):
            remove_left_behind(self.folder)
            lock = _own(self.folder, self.name)
        self._traits = Traits(
            torch.device("cpu"),
            Tier.SHARED,
            mapping.PAGE,
            host_visible=True,
            zeroed=True,
            exportable=frozenset({KIND}),
        )
        self._count = 0
        self._made: dict[int, tuple[torch.Tensor, Path]] = {}
        self._opened: dict[int, tuple[torch.Tensor, Path]] = {}
        self._end = weakref.finalize(self, _leave, self.folder, self.name, lock, os.getpid())

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A segment; for its errors see ``trivet.contracts.memory.Allocator``."""
        mapping.refuse_fork(self._process, self.folder)
        self._count += 1
        path = self.folder / f"{self.name}.{self._count}"
        made = mapping.create(path, nbytes, tag=tag)
        self._made[id(made)] = made, path
        return made

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Removes the name; the memory goes when no process maps it any more."""
        known = self._made.get(id(buffer))
        if known is None:
            raise InvalidBuffer("this is no segment of this owner", fix="close what was opened")
        if os.getpid() == self._process:
            with mapping.no_room(0, str(known[1]), "to be removed"):
                known[1].unlink(missing_ok=True)
        del self._made[id(buffer)]

    def export(self, buffer: torch.Tensor, kind: str) -> bytes:
        """The name of a segment, for ``open`` in another process."""
        if kind != KIND:
            raise MemoryFault(f"a segment is not exported as {kind!r}", fix=f"ask for {KIND!r}")
        known = self._made.get(id(buffer))
        if known is None:
            raise MemoryFault("this is no segment of this owner", fix="export what allocate gave")
        owner, _, part = known[1].name.partition(".")
        return json.dumps({"owner": owner, "part": part, "nbytes": buffer.numel()}).encode()

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        """The segment of another process; those whose owners have ended are given up first."""
        self.give_up_ended()
        if kind != KIND:
            raise MemoryFault(f"a segment is not opened as {kind!r}", fix=f"ask for {KIND!r}")
        owner, part, nbytes = _parsed(exported)
        path = self.folder / f"{owner}.{part}"
        if not owner_lives(self.folder, owner):
            raise MemoryFault(f"the owner of {path} has ended", fix="ask its successor for another")
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            msg = f"{path} cannot be opened: {error.strerror}"
            raise MemoryFault(
                msg, fix="the owner has freed it, or shares another folder"
            ) from error
        try:
            if (size := os.fstat(file).st_size) != nbytes:
                msg = f"{path} has {size} bytes, its export says {nbytes}"
                raise MemoryFault(msg, fix="export it again")
            with mapping.no_room(nbytes, str(path), "an opened segment"):
                opened = mapping.of_file(file, nbytes)
        finally:
            os.close(file)
        self._opened[id(opened)] = opened, path
        return opened

    def close(self, buffer: torch.Tensor) -> None:
        """Gives up what ``open`` returned.

        Raises:
            InvalidBuffer: it was closed before, or given up because its owner has ended.
        """
        if self._opened.pop(id(buffer), None) is None:
            raise InvalidBuffer("this segment is not open", fix="close each one once")

    def give_up_ended(self) -> list[str]:
        """Closes what was opened from owners that have ended; the paths of it.

        A tensor that somebody still holds can be read: its memory goes with it.
        """
        names = {path.name.partition(".")[0] for _, path in self._opened.values()}
        ended = {name for name in names if not owner_lives(self.folder, name)}
        gone = {
            number: path
            for number, (_, path) in self._opened.items()
            if path.name.partition(".")[0] in ended
        }
        for number in gone:
            del self._opened[number]
        return sorted(str(path) for path in gone.values())

    def end(self) -> None:
        """Removes every segment and opens no more; a second call does nothing."""
        self._made.clear()
        self._opened.clear()
        self._end()


def owner_lives(folder: Path, name: str) -> bool:
    """Whether the process that owns segments of a name is there and has not given them up.

    Where that cannot be found out (no more files can be opened), it is: nothing of it is removed.
    """
    try:
        file = os.open(folder / f"{name}.owner", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        return not _locked(file, fcntl.LOCK_SH)
    except OSError:
        return True
    finally:
        os.close(file)


def remove_left_behind(folder: Path) -> list[str]:
    """Removes segments of owners that ended without removing them; their names."""
    found = []
    for owner in folder.glob("trivet-*.owner"):
        name = owner.name.removesuffix(".owner")
        if not _NAME.fullmatch(name) or not os.access(owner, os.W_OK):
            continue
        if not owner_lives(folder, name):
            _remove(folder, name)
            found.append(name)
    return sorted(found)


def _own(folder: Path, name: str) -> int:
    """Makes the file whose lock says that this process lives; it appears when it is locked."""
    hidden = folder / f"{name}.starting"
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        hidden.rename(folder / f"{name}.owner")
    except BaseException:
        os.close(file)
        hidden.unlink(missing_ok=True)
        raise
    return file


def _locked(file: int, how: int) -> bool:
    """Whether a lock can be had now; it is given back with the file."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leave(folder: Path, name: str, lock: int, process: int) -> None:
    """Removes the segments in the process that made them; a fork gives up its copy of the lock."""
    if os.getpid() == process:
        _remove(folder, name)
    os.close(lock)


def _remove(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}.*"):
        path.unlink(missing_ok=True)


def _parsed(exported: bytes) -> tuple[str, str, int]:
    """Owner, number and size of an export; nothing in it can name a file elsewhere."""
    try:
        told = json.loads(exported)
        owner, part, nbytes = told["owner"], told["part"], told["nbytes"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MemoryFault("this is no export of a segment", fix="pass what export gave") from error
    good = isinstance(owner, str) and _NAME.fullmatch(owner) and isinstance(part, str)
    if not good or not _PART.fullmatch(part) or type(nbytes) is not int or nbytes < 0:
        raise MemoryFault("this is no export of a segment", fix="pass what export gave")
    return owner, part, nbytes
