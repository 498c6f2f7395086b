"""Pages from the operating system: mapped, advised, given back, and where they lie."""

from __future__ import annotations

import mmap
import sys
from functools import cache
from pathlib import Path
from typing import Final

import torch

from trivet.errors import MemoryFault, OutOfMemory

PAGE: Final = mmap.PAGESIZE
_HUGETLB: Final = 0x40000  # MAP_HUGETLB of Linux, which Python does not name
_NODES: Final = "sys/devices/system/node"


def missing() -> str:
    """Why this system has no such pages; empty where it has."""
    if sys.platform != "linux":
        return f"{sys.platform} does not give pages back by MADV_DONTNEED as Linux does"
    return ""


@cache
def huge_page_bytes(root: Path = Path("/")) -> int | None:
    """Size of a transparent huge page; None where there are none, or nobody may ask for them."""
    folder = root / "sys/kernel/mm/transparent_hugepage"
    try:
        if "[never]" in (folder / "enabled").read_text(encoding="ascii"):
            return None
        return int((folder / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


@cache
def nodes(root: Path = Path("/")) -> int:
    """Memory nodes of the machine; 1 where it does not say."""
    found = sum(1 for path in (root / _NODES).glob("node[0-9]*") if path.name[4:].isdigit())
    return max(1, found)


def note() -> str:
    """What a person should know of how buffers lie here."""
    if reason := missing():
        return f"large buffers come from torch: {reason}"
    huge, count = huge_page_bytes(), nodes()
    size = f"huge pages of {huge >> 20} MiB" if huge else f"pages of {PAGE >> 10} KiB"
    where = (
        f"on {count} memory nodes, each page near the thread that first writes it"
        if count > 1
        else "on the one memory node"
    )
    return f"large buffers are {size} {where}"


class Pages:
    """A run of pages of this process, and the bytes of it that a buffer is.

    Args:
        nbytes: of the buffer, more than 0.
        fd: shared memory to map; -1 for pages of this process alone.
        huge: ask for huge pages that were set apart (``MAP_HUGETLB``).

    Raises:
        OutOfMemory: the system does not give so many.
    """

    def __init__(self, nbytes: int, *, fd: int = -1, huge: bool = False) -> None:
        big = huge_page_bytes() or 0
        self.shared = fd >= 0
        # Room to begin at a multiple of a huge page: only whole ones are used.
        extra = big if big and nbytes >= big and not (self.shared or huge) else 0
        unit = (big or PAGE) if huge else PAGE
        size = -(-(nbytes + extra) // unit) * unit
        flags = mmap.MAP_SHARED if self.shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._map = mmap.mmap(fd, size, flags | (_HUGETLB if huge else 0))
        except (OSError, OverflowError, ValueError) as error:
            what = "huge pages that were set apart" if huge else "memory"
            raise OutOfMemory(
                f"the system does not map {nbytes} bytes of {what}: {error}",
                requested_bytes=nbytes,
                fix="set more of them apart (vm.nr_hugepages)" if huge else "ask for less",
            ) from error
        address = torch.frombuffer(self._map, dtype=torch.uint8, count=1).data_ptr()
        self._first = -address % extra if extra else 0
        self.nbytes = nbytes
        self.size = -(-nbytes // unit) * unit
        if big and nbytes >= big and not huge:
            self._advise(mmap.MADV_HUGEPAGE, needed=False)

    def tensor(self) -> torch.Tensor:
        """The bytes as a ``uint8`` tensor, which keeps them mapped as long as it lives."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=self.nbytes, offset=self._first)

    def give_back(self) -> None:
        """Give the memory back and keep the address; what is read next is zero.

        Raises:
            MemoryFault: the system refuses; nothing changed.
        """
        self._advise(mmap.MADV_REMOVE if self.shared else mmap.MADV_DONTNEED, needed=True)

    def _advise(self, advice: int, *, needed: bool) -> None:
        try:
            self._map.madvise(advice, self._first, self.size)
        except OSError as error:
            if needed:
                msg = f"the system does not take {self.size} bytes of pages back: {error}"
                raise MemoryFault(msg, fix="free the buffer instead") from error
