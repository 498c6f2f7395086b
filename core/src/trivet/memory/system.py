"""The memory of the machine that this process may use, as the operating system says."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Final

from trivet.contracts.memory import MemoryInfo

_UNLIMITED: Final = 1 << 60  # version 1 of control groups writes "no limit" as a huge number


def host_info(root: Path = Path("/")) -> MemoryInfo:
    """Total and free memory of the host, within the limits of this process's control groups.

    Args:
        root: where ``proc`` and ``sys`` lie.
    """
    total, free = _meminfo(root)
    if total is None:
        return _from_sysconf()
    groups = [(limit, used) for limit, used in _control_groups(root) if limit < total]
    if not groups:
        return MemoryInfo(total_bytes=total, free_bytes=free, source="/proc/meminfo")
    left = min(max(0, limit - used) for limit, used in groups)
    return MemoryInfo(
        total_bytes=total,
        free_bytes=left if free is None else min(free, left),
        limit_bytes=min(limit for limit, _ in groups),
        source="/proc/meminfo, control group",
    )


def resident_bytes(root: Path = Path("/")) -> int | None:
    """What this process holds in memory now, shared pages included; None where nobody says."""
    fields = _text(root / "proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    fields: dict[str, int] = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        amount = rest.split()
        if amount and amount[0].isdigit():
            fields[name] = int(amount[0]) * 1024
    return fields.get("MemTotal"), fields.get("MemAvailable", fields.get("MemFree"))


def _from_sysconf() -> MemoryInfo:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return MemoryInfo(source="unknown: the system has neither /proc/meminfo nor sysconf")
    page = os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in names else None
    total = os.sysconf("SC_PHYS_PAGES") * page
    return MemoryInfo(total_bytes=total, free_bytes=free, source="sysconf")


def _control_groups(root: Path) -> list[tuple[int, int]]:
    """(limit, bytes in use) of this process's group and of each group around it."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit_name, used_name = "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount = "sys/fs/cgroup/memory"
            limit_name, used_name = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # In a container the path may be the host's; its ancestor "." is then the group itself.
        for part in (inner, *inner.parents):
            folder = root / mount / part
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED:
                found.append((limit, max(0, used - _reclaimable(folder))))
    return found


def _reclaimable(folder: Path) -> int:
    """Page cache that the system gives up before it refuses an allocation."""
    for line in _text(folder / "memory.stat").splitlines():
        name, _, amount = line.partition(" ")
        if name == "inactive_file":
            return int(amount)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """The content of a file, or nothing when this system does not have it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
