"""What ranks see when one of them is late, lost, wrong or aborted."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import torch
from asking import ends, refuses

from trivet.errors import (
    CommAborted,
    CommError,
    CommTimeout,
    GroupMismatch,
    PeerLost,
)

CPU = torch.device("cpu")


def dead_peer(dev):
    g = dev.group("mortal", timeout=5)
    g.barrier()
    if g.rank == 1:
        os._exit(3)
    x = torch.ones(1000)
    error = ends(lambda: g.all_reduce(x), PeerLost, "all_reduce #1 of group mortal")
    assert error.operation == "all_reduce"
    assert error.seq == 1
    assert error.ranks == (1,) or g.size > 2, error  # another rank may have failed first
    assert x.eq(1).all()
    began = time.monotonic()
    ends(lambda: g.all_reduce(x), PeerLost, "failed before")
    ends(lambda: g.start.send(x, 1), PeerLost, "failed before")
    assert time.monotonic() - began < 1
    assert g.failure is error or g.failure.what == error.what
    g.close()
    g.close()
    os._exit(0)  # the world group cannot be left in good order any more


def late_peer(dev):
    g = dev.group("hasty", timeout=0.5)
    g.barrier()
    if g.rank == 0:
        error = ends(lambda: g.all_reduce(torch.ones(3)), CommTimeout, "did not come: rank 1")
        assert error.ranks == (1,)
        ends(g.barrier, CommTimeout, "failed before")
    dev.group("world").barrier()
    if g.rank != 0:
        error = ends(lambda: g.all_reduce(torch.ones(3)), PeerLost, "rank 0 gave up at all_reduce")


def short_wait(dev):
    g = dev.group("patient", timeout=20)
    if g.rank == 0:
        work = g.start.all_reduce(torch.ones(3))
        assert not work.is_completed()
        began = time.monotonic()
        error = ends(lambda: work.wait(0.2), CommTimeout, "all_reduce #0 of group patient")
        assert time.monotonic() - began >= 0.2
        assert ends(work.wait, CommTimeout) is error
        assert ends(work.result, CommTimeout) is error
        assert work.is_completed()
        ends(g.barrier, CommTimeout, "failed before")
    dev.group("world").barrier()


def late_in_check_mode(dev):
    g = dev.group("hasty", timeout=0.5, check=True)
    if g.rank == 0:
        error = ends(lambda: g.all_reduce(torch.ones(3)), CommTimeout, "for ranks [1]")
        assert error.ranks == (1,)
        ends(g.barrier, CommTimeout, "failed before")
    dev.group("world").barrier()
    h = dev.group("messages", timeout=0.5, check=True)
    if h.rank == 0:
        work = h.start.recv(torch.ones(3), 1)
        assert not work.is_completed()
        ends(work.wait, CommTimeout, "timed out")
        ends(h.barrier, CommTimeout, "failed before")
    dev.group("world").barrier()


def other_order(dev):
    """Ranks that make two calls in another order get errors within the deadline."""
    g = dev.group("order", timeout=1)
    x, y = torch.ones(4), torch.ones(5)
    calls = [lambda: g.all_reduce_(x), lambda: g.broadcast_(y, 1)]
    began = time.monotonic()
    ends(lambda: [call() for call in (calls if g.rank else calls[::-1])], CommError)
    assert time.monotonic() - began < 3
    dev.group("world").barrier()


def stopped_peer(dev):
    """A stopped process is found by the timeout; when it goes on, it learns that it is late."""
    g = dev.group("stopped", timeout=0.5)
    pids = g.all_gather(torch.tensor([os.getpid()])).tolist()
    if g.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        ends(lambda: g.all_reduce(torch.ones(4)), PeerLost, "rank 0 gave up at all_reduce #1")
    else:
        began = time.monotonic()
        error = ends(lambda: g.all_reduce(torch.ones(4)), CommTimeout, "did not come: rank 1")
        assert time.monotonic() - began < 0.5 + 2
        assert error.ranks == (1,)
        os.kill(pids[1], signal.SIGCONT)
    dev.group("world").barrier()


def silent_store(dev):
    """A store that does not answer costs no more than the deadline."""
    g = dev.group("silent", timeout=0.5, check=True)
    g.barrier()

    class Silent:
        def __getattr__(self, name):
            return lambda *_: time.sleep(30)

    g._m.agreement._store = Silent()
    began = time.monotonic()
    ends(lambda: g.all_reduce(torch.ones(4)), CommTimeout, "did not answer")
    assert time.monotonic() - began < 3
    ends(g.barrier, CommTimeout, "failed before")
    h = dev.group("aborted silence", timeout=20, check=True)
    h._m.agreement._store = Silent()
    threading.Timer(0.1, h.abort).start()
    ends(lambda: h.all_reduce(torch.ones(4)), CommAborted)


def aborted(dev):
    """``abort`` from another thread ends a wait of any kind, and the other ranks'."""
    world = dev.group("world")
    for name, call in {
        "reduction": lambda g: g.all_reduce(torch.ones(1000)),
        "message": lambda g: g.recv(torch.ones(1000), 1),
    }.items():
        g = dev.group(name, timeout=20)
        if g.rank == 0:
            threading.Timer(0.2, g.abort).start()
            began = time.monotonic()
            ends(lambda call=call, g=g: call(g), CommAborted, "aborted")
            assert time.monotonic() - began < 5
            ends(g.barrier, CommAborted, "failed before")
        else:
            ends(lambda g=g: g.broadcast(torch.ones(8)), PeerLost)
        world.barrier()
        g.close()


def shrinks(dev):
    """Survivors of a dead rank go on without a word about who it was."""
    g = dev.group("mortal", timeout=5, prefer={"all_reduce": ["composed/two_shot"]})
    g.barrier()
    if g.rank == g.size - 1:
        os._exit(3)
    ends(lambda: g.all_reduce(torch.ones(10)), PeerLost)
    left = g.shrink()
    assert left.ranks == tuple(range(g.size - 1))
    assert left.all_reduce(torch.ones(3)).eq(left.size).all()
    assert left.providers()["all_reduce"] == "composed/two_shot"
    assert g.failure is not None
    g.close()
    left.close()
    os._exit(0)


def shrinks_as_told(dev):
    g = dev.group("parted", timeout=5)
    if g.rank == 2:
        ends(lambda: (time.sleep(0.2), g.shrink(dead=[0])), GroupMismatch, "go on are [0, 1]")
    else:
        left = g.shrink(dead=[2])
        assert left.all_reduce(torch.ones(3)).eq(2).all()
        left.close()
    dev.group("world").barrier()


def remembers(dev):
    """The recorder has the last calls, failed ones with their error."""
    g = dev.group("told", timeout=10)
    g.all_reduce(torch.ones(3))
    g.all_gather(torch.ones(2, dtype=torch.int64))
    if g.rank < 2:
        other = 1 - g.rank
        works = [g.start.send(torch.ones(1), other), g.start.recv(torch.ones(1), other)]
        for work in works:
            work.wait()
    refuses(lambda: g.broadcast(torch.ones(1), 7), "ranks 0 to")
    told = g.calls()
    assert (told["rank"], told["size"], told["failure"]) == (g.rank, g.size, None)
    assert [(c["seq"], c["operation"]) for c in told["calls"] if c["seq"] is not None] == [
        (0, "all_reduce"), (1, "all_gather"),
    ]  # fmt: skip
    assert all(c["ended"] >= c["began"] for c in told["calls"])
    for _ in range(300):
        g.barrier()
    assert len(g.calls()["calls"]) == 256


def leaves_a_record(dev):
    """With a folder named, files are there while a rank waits, and once it has failed."""
    folder = Path(os.environ["TRIVET_COMM_DUMP"])
    g = dev.group("watched", timeout=2.5)
    g.barrier()
    if g.rank == 0:
        ends(lambda: g.all_reduce(torch.ones(3)), CommTimeout)
    else:
        path = folder / f"{g.calls()['token']}.0.json"
        deadline = time.monotonic() + 20
        while not path.exists() or "all_reduce" not in path.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.2)  # this rank's own file
    dev.group("world").barrier()
