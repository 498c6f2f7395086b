"""NUMA nodes of this machine as the system lists them: processors, memory, distances."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trivet.contracts.topology import Link, Node

_NODES: Final = Path("/sys/devices/system/node")
_LOCAL: Final = 10
"""The distance of a node to itself."""

_MOST: Final = 1 << 16  # processors; a damaged list may say any


class NumaTopology:
    """The host, its NUMA nodes and how far they are from one another.

    Args:
        folder: where the system lists them.
    """

    def __init__(self, folder: Path = _NODES) -> None:
        self.folder = folder

    def nodes(self) -> Sequence[Node]:
        """The host, then its NUMA nodes; the host alone where the system lists none."""
        host = Node(socket.gethostname() or "host", "host")
        found = [
            Node(f"numa:{n}", "numa", host.name, _cores(_read(folder / "cpulist")),
                 _memory(_read(folder / "meminfo")))
            for n, folder in self._listed()
        ]  # fmt: skip
        return [host, *found]

    def links(self) -> Sequence[Link]:
        """Between any two NUMA nodes, with the distance that the firmware states."""
        listed = self._listed()
        found = []
        for row, (a, folder) in enumerate(listed):
            texts = _read(folder / "distance").split()
            for column, (b, _) in enumerate(listed):
                if b > a and row != column and column < len(texts) and texts[column].isdigit():
                    times = int(texts[column]) / _LOCAL
                    kind = f"memory at {times:g} times the local distance"
                    found.append(Link(f"numa:{a}", f"numa:{b}", kind))
        return found

    def reaches(self, reader: int, owner: int) -> bool:
        """Not so: processes do not read one another's ordinary memory."""
        del reader, owner
        return False

    def _listed(self) -> list[tuple[int, Path]]:
        try:
            folders = list(self.folder.iterdir())
        except OSError:  # another system, or a container without it
            return []
        matches = ((re.fullmatch(r"node([0-9]{1,5})", one.name), one) for one in folders)
        return sorted((int(match[1]), one) for match, one in matches if match)


def _cores(text: str) -> tuple[int, ...]:
    """The processors of a list such as ``0-3,8``."""
    found: list[int] = []
    for first, last in re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text):
        found += range(int(first), int(last or first) + 1)
        if len(found) > _MOST:
            return ()
    return tuple(found)


def _memory(text: str) -> int | None:
    match = re.search(r"MemTotal:\s*([0-9]{1,18}) kB", text)
    return int(match[1]) << 10 if match else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
