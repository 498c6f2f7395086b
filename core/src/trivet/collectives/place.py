"""Where this process runs, as other processes can compare it; and which processes have ended."""

from __future__ import annotations

import contextlib
import os
import socket
from functools import cache
from pathlib import Path

import torch

from trivet.contracts.collectives import Group, Member


@cache
def host() -> str:
    """A name of this machine; containers that share neither memory nor processes have their own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # only some systems have these
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        spaces = Path("/proc/self/ns/pid").readlink()
        parts += [boot[:8], str(spaces).strip("pid:[]"), str(Path("/dev/shm").stat().st_dev)]  # noqa: S108
    return "-".join(parts)


def member(rank: int, device: torch.device) -> Member:
    """This process as a member of a group."""
    return Member(rank, host(), os.getpid(), str(device))


def ended(group: Group) -> tuple[int, ...]:
    """Positions of members whose processes on this machine have ended."""
    here = group.members[group.rank].host
    return tuple(
        position
        for position, one in enumerate(group.members)
        if one.host == here and not _runs(one.pid)
    )


def running(where: str, pid: int) -> bool | None:
    """Whether a process runs; None where that cannot be known from here."""
    return _runs(pid) if where == host() else None


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    except (OSError, IndexError, ValueError):
        return True
    else:
        return state not in {"Z", "X"}
    try:
        os.kill(pid, 0)  # a question, no signal
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
