"""Ranks that die, stop, are late, raise, or call something else; the others have a deadline."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trivet.contracts.collectives import Message
from trivet.errors import (
    CommAborted,
    CommArgumentError,
    CommError,
    CommTimeout,
    CommUnsupported,
    GroupMismatch,
    PeerLost,
)
from trivet_cpu.collectives import segment
from trivet_cpu.collectives.shared_memory import SharedMemoryRanks

DEADLINE = globals()["JOB"]["seconds"]
MARGIN = 8.0  # a machine that does much else


def ones(n=10):
    return torch.ones(n)


def raised(call, kind):
    """The error that a call ends with, in time."""
    began = time.monotonic()
    with pytest.raises(CommError) as caught:
        call()
    assert caught.type is kind, caught.value
    assert time.monotonic() - began < DEADLINE + MARGIN
    return caught.value


def stays_failed(ranks, kind):
    """A failed group fails at once, in every operation, and can be closed."""
    began = time.monotonic()
    x = torch.ones(1)
    raised(ranks.barrier, kind)
    raised(lambda: ranks.all_reduce(x, x, "sum"), kind)
    peer = (ranks.group.rank + 1) % ranks.group.size
    raised(ranks.batch([Message(False, peer, x.view(torch.uint8))]).wait, kind)
    assert time.monotonic() - began < 1
    ranks.close()


def run_some(ranks, count):
    for n in range(count):
        x = torch.full((1 + 5000 * (n % 7),), float(ranks.group.rank))
        ranks.all_reduce(x, x, "sum")
        assert x.eq(sum(range(ranks.group.size))).all()


def dead_sender(ranks):
    """What was sent before the end arrives; what was not, is an error."""
    peer = ranks.group.size - 1
    if ranks.group.rank == peer:
        for r in range(peer):
            ranks.batch([Message(True, r, torch.full((1000,), 7, dtype=torch.uint8))]).wait()
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.zeros(1000, dtype=torch.uint8)
    time.sleep(0.2)
    ranks.batch([Message(False, peer, x)]).wait()
    assert x.eq(7).all()
    error = raised(ranks.batch([Message(False, peer, x)]).wait, PeerLost)
    assert error.ranks == (peer,)


def unreceived(ranks):
    """A message that nobody takes ends with the deadline."""
    x = torch.zeros(4_000_000, dtype=torch.uint8)
    if ranks.group.rank == 0:
        work = ranks.batch([Message(True, 1, x)])
        assert not work.is_completed()
        raised(work.wait, CommTimeout)
        assert work.is_completed()
    else:
        time.sleep(DEADLINE + 0.5)


def aborted(ranks):
    """One rank's abort, from another thread, ends what all ranks wait for."""
    if ranks.group.rank == 0:
        threading.Timer(0.3, ranks.abort).start()
        error = raised(ranks.barrier, CommAborted)
    elif ranks.group.rank == 1:
        error = raised(
            ranks.batch([Message(False, 0, torch.zeros(1, dtype=torch.uint8))]).wait, CommAborted
        )
    else:
        error = raised(ranks.barrier, CommAborted)
    assert error.ranks == (0,)
    stays_failed(ranks, CommAborted)
    ranks.abort()  # also after close


class Alarm(Exception):
    pass


def interrupted(ranks):
    """What the handler of a signal raises comes out of a wait; the others learn of it."""
    if ranks.group.rank:
        work = ranks.batch([Message(False, 0, torch.zeros(1, dtype=torch.uint8))])
        error = raised(work.wait, CommAborted)
        assert "signal" in str(error)
        return

    def ring(number, frame):
        raise Alarm

    seen = []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    signal.signal(signal.SIGUSR1, ring)
    # the system may tell any thread of a process: here it is one that does not wait
    threading.Timer(0.4, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)).start()
    try:
        ranks.barrier()
    except Alarm:
        assert seen, "a handler that raises nothing lets the wait go on"
        raised(ranks.barrier, CommAborted)
        return
    raise AssertionError("no Alarm")


def mismatches(ranks):
    """All ranks see it, nothing is done, and the group goes on."""
    me, size = ranks.group.rank, ranks.group.size
    last = me == size - 1
    x, y = torch.ones(10), torch.ones(10, dtype=torch.int32)
    flat = x.view(torch.uint8)
    wide = torch.zeros(40 * size, dtype=torch.uint8)
    big = torch.ones(200_000)

    def splits(n):
        return [n if last and r == 0 else 4 for r in range(size)]

    calls = {
        "dtype": lambda: ranks.all_reduce(y if last else x, y if last else x, "sum"),
        "count": lambda: ranks.all_reduce(x[: 9 if last else 10], x[: 9 if last else 10], "sum"),
        "large count": lambda: ranks.all_reduce(*[big[: 199_999 if last else None]] * 2, "sum"),
        "large and small": lambda: ranks.all_reduce(*[x if last else big] * 2, "sum"),
        "reduction": lambda: ranks.all_reduce(x, x, "max" if last else "sum"),
        "operation": lambda: ranks.barrier() if last else ranks.broadcast(flat, 0),
        "root": lambda: ranks.broadcast(flat, int(last)),
        "size": lambda: ranks.all_gather(wide, flat[: 4 if last else 8]),
        "pieces": lambda: ranks.all_to_all_v(wide[: 4 * size], wide[: sum(splits(5))],
                                             [4] * size, splits(5)),
    }  # fmt: skip
    said = []
    for name, call in calls.items():
        error = raised(call, GroupMismatch)
        said.append(f"{name}: {error.what}")
        assert error.ranks[1] == size - 1 or name == "pieces", error
        assert x.eq(1).all()
        assert big.eq(1).all()
        run_some(ranks, 3)
    return "\n".join(said)


def message_of_another_size(ranks):
    """The receiver sees it; the next message is right again."""
    if ranks.group.rank == 0:
        ranks.batch([Message(True, 1, torch.zeros(500_000, dtype=torch.uint8)),
                     Message(True, 1, torch.ones(8, dtype=torch.uint8))]).wait()  # fmt: skip
    elif ranks.group.rank == 1:
        x = torch.zeros(8, dtype=torch.uint8)
        error = raised(ranks.batch([Message(False, 0, x)]).wait, GroupMismatch)
        assert "500000 bytes, 8 are expected" in str(error)
        ranks.batch([Message(False, 0, x)]).wait()
        assert x.eq(1).all()
    ranks.barrier()


def closed(ranks):
    ranks.barrier()
    ranks.close()
    raised(ranks.barrier, CommArgumentError)
    ranks.close()


def opens(function):
    """Marks a body that opens the group itself."""
    function.opens = True
    return function


def mapped():
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:trivet")


@opens
def given_back(group, store):
    """Memory and files are as before once a group is gone."""
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for n in range(3):
        ranks = SharedMemoryRanks(group, dist.PrefixStore(str(n), store))
        memory = ranks.symmetric(100_000)
        ranks.barrier()
        assert mapped() == 2
        ranks.close()
        del ranks, memory
        gc.collect()
        assert mapped() == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@opens
def one_cannot(group, store):
    """What one rank cannot do, no rank does, and all say why."""
    import resource

    last = group.rank == group.size - 1

    said = []
    true_description = segment.describe
    if last:
        segment.describe = lambda: {**true_description(), "user": -1}
    said.append(raised(lambda: SharedMemoryRanks(group, dist.PrefixStore("user", store)),
                       CommUnsupported).what)  # fmt: skip
    segment.describe = true_description
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if group.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    said.append(raised(lambda: SharedMemoryRanks(group, dist.PrefixStore("room", store)),
                       CommUnsupported).what)  # fmt: skip
    if group.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    SharedMemoryRanks(group, dist.PrefixStore("well", store)).barrier()
    gc.collect()
    assert mapped() == 0
    return "\n".join(said)


@opens
def one_does_not_come(group, store):
    if group.rank:
        error = raised(lambda: SharedMemoryRanks(group, store), CommTimeout)
        assert error.ranks == (0,)
