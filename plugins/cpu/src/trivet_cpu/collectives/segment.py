"""Memory without a name that all ranks of a machine map, and what they tell each other first.

It is a file in memory that one rank makes and the others open through ``/proc``; once all have it
mapped it is nothing but memory, which ends with the last process that has it. It does not lie in
``/dev/shm``, whose size therefore does not matter.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch

from trivet.contracts.collectives import Group, Store
from trivet.errors import CommTimeout, CommUnsupported, OutOfMemory
from trivet_cpu.memory.room import refuse_beyond

FAILED: Final = "failed"
Record = dict[str, Any]


class Talk:
    """Rounds in which every rank says something to all others, before they share memory."""

    def __init__(self, group: Group, store: Store) -> None:
        self._group = group
        self._store = store
        self._rounds = 0

    def say(self, make: Callable[[], Record]) -> list[Record]:
        """What ``make`` returns on every rank, by rank.

        Raises:
            CommUnsupported: on all ranks alike, when it raised on one of them.
            CommTimeout: a rank did not come.
        """
        number, self._rounds = self._rounds, self._rounds + 1
        mine: Record
        try:
            mine = make()
        except (OSError, OutOfMemory, CommUnsupported) as error:
            mine = {FAILED: getattr(error, "what", str(error))}
        keys = [f"shm/{number}/{rank}" for rank in range(self._group.size)]
        self._store.set(keys[self._group.rank], json.dumps(mine))
        try:
            self._store.wait(keys, timedelta(seconds=self._group.timeout))
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            msg = f"{self._group.name}: ranks {missing} did not come to share memory"
            raise CommTimeout(msg, ranks=missing) from error
        said: list[Record] = [json.loads(self._store.get(key)) for key in keys]
        for rank, record in enumerate(said):
            if FAILED in record:
                raise CommUnsupported(
                    f"{self._group.name}: no shared memory: rank {rank}: {record[FAILED]}",
                    ranks=[rank],
                    fix="free memory, or leave the group to torch.distributed",
                )
        return said


def describe() -> Record:
    """What ranks must have in common to see each other's memory, and the cores of this one."""
    return {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "processes": Path("/proc/self/ns/pid").readlink().as_posix(),
        "user": os.getuid(),
        "cores": sorted(os.sched_getaffinity(0)),
        "quota": _quota(),
    }


def require_one_machine(said: list[Record]) -> None:
    """Refuse ranks that cannot map each other's memory.

    Raises:
        CommUnsupported: says what differs.
    """
    for fact in ("boot", "processes", "user"):
        for rank, record in enumerate(said):
            if record[fact] != said[0][fact]:
                raise CommUnsupported(
                    f"ranks 0 and {rank} cannot share memory: {fact} {said[0][fact]} and "
                    f"{record[fact]}",
                    ranks=[0, rank],
                    fix="run the ranks of a machine in one container, as one user",
                )


def may_spin(said: list[Record]) -> bool:
    """Whether each rank has a core to itself while it waits."""
    cores = {core for record in said for core in record["cores"]}
    quota: float = min(record["quota"] for record in said)
    return min(len(cores), quota) >= len(said)


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores' worth of time that the control group of this process may use."""
    least = float("inf")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line[3:].strip().lstrip("/") for line in lines if line.startswith("0::")), "")
        for folder in {root, root / own}:
            limit, _, period = (folder / "cpu.max").read_text(encoding="ascii").partition(" ")
            if limit != "max":
                least = min(least, int(limit) / int(period))
    except (OSError, ValueError):
        return least
    return least


@contextmanager
def made(nbytes: int, what: str) -> Iterator[Record]:
    """A file in memory, open inside the block, and where the others find it.

    Raises:
        OutOfMemory: there is no room.
    """
    refuse_beyond(nbytes, what)
    try:
        fd = os.memfd_create(f"trivet {what}"[:200], os.MFD_CLOEXEC)
    except OSError as error:
        raise _no_room(nbytes, what, error) from error
    try:
        try:
            os.ftruncate(fd, nbytes)
        except OSError as error:
            raise _no_room(nbytes, what, error) from error
        yield {"pid": os.getpid(), "fd": fd, "inode": os.fstat(fd).st_ino, "nbytes": nbytes}
    finally:
        os.close(fd)


def mapped(where: Record) -> mmap.mmap:
    """The file that a rank made, mapped here.

    Raises:
        CommUnsupported: it cannot be opened.
        OutOfMemory: it cannot be mapped.
    """
    path = f"/proc/{where['pid']}/fd/{where['fd']}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        msg = f"the memory of process {where['pid']} cannot be opened: {error}"
        fix = "the ranks must be of one user and see one /proc"
        raise CommUnsupported(msg, fix=fix) from error
    try:
        if os.fstat(fd).st_ino != where["inode"]:
            raise CommUnsupported(f"{path} is another file by now", fix="open the group again")
        return mmap.mmap(fd, where["nbytes"])
    except (OSError, ValueError) as error:
        raise _no_room(where["nbytes"], "shared by ranks", error) from error
    finally:
        os.close(fd)


def address_of(memory: mmap.mmap) -> int:
    """Where it begins."""
    return torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()


def _no_room(nbytes: int, what: str, error: Exception) -> OutOfMemory:
    msg = f"no shared memory of {nbytes} bytes ({what}): {error}"
    return OutOfMemory(msg, requested_bytes=nbytes, tag=what, fix="free memory or raise its limit")
