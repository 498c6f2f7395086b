"""How much memory a touch of pages may take, before the kernel ends a process for it."""

from __future__ import annotations

from pathlib import Path

import torch

from trivet.errors import MemoryFault, OutOfMemory


def free_bytes(root: Path = Path("/")) -> int | None:
    """Free memory of the machine, or of this process's own control group; None if nobody says."""
    lines = _text(root / "proc/meminfo").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            inner = group / line[3:].strip().lstrip("/")
            group = inner if inner.is_dir() else group
    limit, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        pages = 0
        for line in _text(group / "memory.stat").splitlines():
            if line.startswith("inactive_file "):
                pages = int(line.split()[1])
        found.append(max(0, int(limit) - int(used) + pages))
    return min(found, default=None)


def refuse_beyond(nbytes: int, tag: str, root: Path = Path("/")) -> None:
    """Refuses pages that would not all be there once they are touched.

    Mapping them always works, and touching one too many ends the process.

    Raises:
        OutOfMemory: there is no room.
    """
    free = free_bytes(root)
    if free is not None and nbytes > free:
        raise OutOfMemory(
            f"the host has no room for {nbytes} bytes ({tag or 'no tag'})",
            requested_bytes=nbytes,
            free_bytes=free,
            tag=tag,
            fix="free something, or ask for less",
        )


def refuse_odd(nbytes: object) -> None:
    """Refuses a size that is none.

    Raises:
        MemoryFault: it is no whole number, or below 0.
    """
    if not isinstance(nbytes, int) or nbytes < 0:
        msg = f"a buffer of {nbytes!r} bytes cannot be made"
        raise MemoryFault(msg, fix="a whole number, 0 or more")


def name_of(buffer: object) -> str:
    """What somebody gave as a buffer."""
    if isinstance(buffer, torch.Tensor):
        return f"tensor ({str(buffer.dtype).removeprefix('torch.')} {list(buffer.shape)})"
    return type(buffer).__qualname__


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
