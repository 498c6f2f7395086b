"""Many groups, in each of which one rank does something else at a random point.

The ranks of a world stay; the one that does something else is a child of rank 0, a new one for each
group. A group waits for its deadline and no longer, whatever it gives is right, and it leaves
neither memory nor processes behind.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trivet.contracts.collectives import Group, Member
from trivet.errors import CommError, CommTimeout, GroupMismatch, PeerLost
from trivet_cpu.collectives.shared_memory import SharedMemoryRanks

JOB = globals()["JOB"]
DEADLINE = JOB["seconds"]
MARGIN = 8.0  # a machine that does much else
WAITING = {"late", "stopped"}  # modes in which the others wait until the deadline
TAKING_TIME = {*WAITING, "slow"}
AT_ONCE = 5


def opens(function):
    """Marks a body that opens its groups itself."""
    function.opens = True
    return function


@opens
def rounds(_group, _store):
    """So many groups for each mode; of those that take time, several at once."""
    prefix, modes, seed, count = JOB["argument"]
    numbers = random.Random(seed)  # noqa: S311  # no secret; the same on every rank
    for mode in modes:
        children = []
        for n in range(count):
            others, point = numbers.randint(1, JOB["size"]), numbers.randrange(60)
            if JOB["rank"] >= others:
                continue
            if mode not in TAKING_TIME:
                one(mode, f"{prefix}/{mode}/{n}", others, point)
                continue
            children.append(forked(one, mode, f"{prefix}/{mode}/{n}", others, point))
            if len(children) == AT_ONCE:
                ended(children)
        ended(children)


def forked(function, *arguments):
    """A child that runs a function and exits with 0, or with 1 after a traceback."""
    if child := os.fork():
        return child
    code = 1
    try:
        function(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001  # said, and the exit status says it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(children):
    while children:
        child = children.pop()
        assert os.waitpid(child, 0)[1] == 0, child


def one(mode, name, others, point):
    """One group of some ranks of the world and a child of rank 0, which comes last."""
    victim = forked(play, mode, name, others, point) if JOB["rank"] == 0 else None
    group = member(name, JOB["rank"], others + 1)
    try:
        watch(mode, opened(group), point)
        assert "memfd:trivet" not in Path("/proc/self/maps").read_text(encoding="utf-8")
    finally:
        if victim is not None:
            if mode == "stopped":
                os.kill(victim, signal.SIGKILL)
            status = os.waitpid(victim, 0)[1]
    if victim is not None:
        expected = {"killed": -9, "killed_large": -9, "stopped": -9, "raising": 3}.get(mode, 0)
        assert os.waitstatus_to_exitcode(status) == expected, mode


def member(name, rank, size):
    members = tuple(Member(r, "here", 0, "cpu") for r in range(size))
    return Group(name, rank, members, torch.device("cpu"), DEADLINE)


class Patient:
    """A store in which ranks wait for each other longer than in a group, which they only make."""

    def __init__(self, store):
        self.set, self.get, self.check, self.add = store.set, store.get, store.check, store.add
        self._wait = store.wait

    def wait(self, keys, timeout):
        self._wait(keys, timeout + timedelta(seconds=30))


def opened(group):
    path = Path(JOB["folder"]) / group.name.replace("/", "-")
    return SharedMemoryRanks(group, Patient(dist.FileStore(str(path), -1)))


def work(ranks, count, *, pause=None):
    """Operations whose results are known."""
    me, size = ranks.group.rank, ranks.group.size
    for n in range(count):
        if pause:
            time.sleep(pause())
        x = torch.full((1 + 5000 * (n % 7),), float(me))
        if n % 3 == 0:
            out = torch.empty(size * len(x))
            ranks.all_gather(out.view(torch.uint8), x.view(torch.uint8))
            assert out.view(size, -1).eq(torch.arange(size).unsqueeze(1)).all()
        else:
            ranks.all_reduce(x, x, "sum")
            assert x.eq(sum(range(size))).all()


def play(mode, name, others, point):
    """The rank that does something else."""
    ranks = opened(member(name, others, others + 1))
    if mode == "slow":
        numbers = random.Random(point)  # noqa: S311  # no secret
        work(ranks, 8, pause=lambda: numbers.random() * DEADLINE / 8)
        ranks.close()
        return
    work(ranks, point)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "killed_large":
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.001 + point / 600)
        goes_on(ranks, 2_000_000)
    elif mode == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif mode == "late":
        time.sleep(DEADLINE + 0.5)
        with pytest.raises(CommTimeout):
            work(ranks, 1)
        ranks.close()
    elif mode == "raising":
        os._exit(3)  # as a program does whose exception nobody catches: nothing is closed
    elif mode == "left":
        ranks.close()
    else:
        mismatched(ranks, other=True)
        work(ranks, 5)
        ranks.close()


def goes_on(ranks, n):
    x = torch.ones(n)
    while True:
        ranks.all_reduce(x, x, "max")
        assert x.eq(1).all()


def mismatched(ranks, *, other):
    """All ranks see the difference, and the group goes on."""
    x = torch.ones(100 + other)
    with pytest.raises(GroupMismatch):
        ranks.all_reduce(x, x, "sum")
    assert x.eq(1).all()


def watch(mode, ranks, point):
    """What the others see."""
    last = ranks.group.size - 1
    if mode == "slow":
        work(ranks, 8)
    else:
        work(ranks, point)
    if mode == "mismatched":
        mismatched(ranks, other=False)
        work(ranks, 5)
    if mode not in {"slow", "mismatched"}:
        began = time.monotonic()
        with pytest.raises(CommError) as caught:
            goes_on(ranks, 2_000_000 if mode == "killed_large" else 3)
        assert time.monotonic() - began < DEADLINE + MARGIN
        expected = CommTimeout if mode in WAITING else PeerLost
        assert (caught.type, caught.value.ranks) == (expected, (last,)), caught.value
        if mode == "killed":
            assert "has ended" in str(caught.value)
        elif mode == "stopped" and last == 1:  # else another rank may have ended it by now
            assert "is stopped" in str(caught.value)
        began = time.monotonic()
        with pytest.raises(expected):
            ranks.barrier()
        assert time.monotonic() - began < 1  # a group that has failed fails at once
    ranks.close()
