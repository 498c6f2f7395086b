"""Buffers that are files, mapped: slow memory of which there is much."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault
from trivet.memory.tiers import mapping
from trivet.plugins.describe import shown


class DiskAllocator:
    """Each buffer is a file of a folder of its own, which goes with the allocator.

    What is written is in the file when the system finds time; nothing outlasts the process, so
    nothing is synchronised. ``BlockFiles`` keeps contents that are checked when they come back.

    Args:
        folder: where the folder is made; the system's folder for temporary files when None.

    Raises:
        MemoryFault: the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = new_folder("trivet-disk-", folder)
        self._process = os.getpid()
        self._traits = Traits(
            torch.device("cpu"), Tier.DISK, mapping.PAGE, host_visible=True, zeroed=True
        )
        self._paths: dict[int, tuple[torch.Tensor, Path]] = {}
        self._count = 0
        self._end = weakref.finalize(self, remove_folder, self.folder, os.getpid())

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        mapping.refuse_fork(self._process, self.folder)
        self._count += 1
        path = self.folder / f"{self._count}.buffer"
        made = mapping.create(path, nbytes, tag=tag)
        self._paths[id(made)] = made, path
        return made

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Removes the file; its room is there again when no tensor maps it."""
        known = self._paths.get(id(buffer))
        if known is None:
            raise InvalidBuffer("this is no buffer of the disk tier", fix="give back what it gave")
        if os.getpid() == self._process:
            with mapping.no_room(0, str(known[1]), "to be removed"):
                known[1].unlink(missing_ok=True)
        del self._paths[id(buffer)]

    def close(self) -> None:
        """Removes the folder; a second call does nothing."""
        self._paths.clear()
        self._end()


def new_folder(prefix: str, folder: str | os.PathLike[str] | None) -> Path:
    """A new folder inside another one, or inside the system's for temporary files.

    Raises:
        MemoryFault: it cannot be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    except (OSError, TypeError, ValueError) as error:
        msg = f"no folder for files can be made in {shown(folder)}: {error}"
        raise MemoryFault(msg, fix="a folder that exists and may be written") from error


def remove_folder(folder: Path, process: int) -> None:
    """Removes a folder, in the process that made it alone: a fork has the object, not the files."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
