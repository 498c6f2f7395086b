"""Memory of peers through torch's symmetric memory, with a stand-in for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from trivet.contracts.collectives import Group, Member
from trivet.errors import CommError, CommTimeout, CommUnsupported, PeerLost
from trivet_cuda.collectives import room as module
from trivet_cuda.collectives.failures import failure
from trivet_cuda.collectives.room import TorchRoom
from trivet_cuda.collectives.talk import Talk
from trivet_cuda.collectives.watch import Watch


class Handle:
    buffer_ptrs = (32, 64)

    def __init__(self, own):
        self.own = own

    def get_buffer(self, rank, sizes, dtype):
        return torch.full(sizes, rank, dtype=dtype)


class Memory:
    """Allocates on the CPU; fails on the rank that is told to."""

    known: ClassVar[dict[tuple[str, int], int]] = {}

    @classmethod
    def set_group_info(cls, name, rank, size, store):
        assert store is not None
        cls.known[name, rank] = size

    @staticmethod
    def empty_strided_p2p(size, stride, dtype, device):
        assert stride == (1,)
        assert size[0] % 16 == 0
        return torch.empty(size, dtype=dtype, device=device)

    @classmethod
    def rendezvous(cls, own, name):
        assert c10d._resolve_process_group(name).size() == 2
        return Handle(own)


def group(rank, timeout=10.0, size=2):
    members = tuple(Member(r, "here", 0, "cpu") for r in range(size))
    return Group("g", rank, members, torch.device("cpu"), timeout, (), None, "abcd")


@pytest.fixture
def torchs(monkeypatch):
    monkeypatch.setattr(c10d, "_SymmetricMemory", Memory)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: device)
    monkeypatch.setattr(Memory, "known", {})


def together(*calls):
    """Results, or errors, of calls of two ranks at the same time."""
    found = [None] * len(calls)

    def one(index):
        try:
            found[index] = calls[index]()
        except CommError as error:
            found[index] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_memory_is_filled_and_seen_by_rank(torchs, monkeypatch):
    monkeypatch.setattr(module, "_registered", lambda *_: None)
    registered = dist.ProcessGroup(dist.HashStore(), 0, 2)  # torch holds it weakly
    c10d._register_process_group("trivet/abcd", registered)
    store = dist.HashStore()
    rooms = [TorchRoom(group(r), store, Talk(group(r), store)) for r in range(2)]
    try:
        a, b = together(*(lambda room=room: room.take(30, 255) for room in rooms))
    finally:
        c10d._unregister_process_group("trivet/abcd")
    assert a.own.tolist() == [255] * 30
    assert a.peers[0] is not a.peers[1]
    assert a.peers[1].tolist() == [1] * 30
    assert b.peers[0].tolist() == [0] * 30
    assert a.addresses[0] == a.own.data_ptr()
    assert set(Memory.known.values()) == {2}


def test_a_room_has_a_name_among_process_groups_until_it_is_closed(torchs):
    del torchs
    store = dist.HashStore()
    room = TorchRoom(group(0), store, Talk(group(0), store))
    assert c10d._resolve_process_group(room.name).rank() == 0
    room.close()
    room.close()
    with pytest.raises(RuntimeError):
        c10d._resolve_process_group(room.name)


def test_a_torch_without_symmetric_memory_is_refused(monkeypatch):
    monkeypatch.delattr(c10d, "_SymmetricMemory")
    store = dist.HashStore()
    with pytest.raises(CommUnsupported, match="no symmetric memory"):
        TorchRoom(group(0), store, Talk(group(0), store))


def test_what_fails_on_one_rank_fails_on_all_with_its_reason():
    store = dist.HashStore()

    def failing():
        msg = "out of memory\nsecond line"
        raise RuntimeError(msg)

    talks = [Talk(group(r), store) for r in range(2)]
    errors = together(lambda: talks[0].say(dict), lambda: talks[1].say(failing))
    assert all(isinstance(error, CommUnsupported) for error in errors)
    assert all("rank 1: out of memory" in error.what for error in errors)
    assert all(error.ranks == (1,) for error in errors)


def test_ranks_that_differ_are_refused_on_all_of_them():
    store = dist.HashStore()
    talks = [Talk(group(r), store) for r in range(2)]
    errors = together(*(lambda t=t, r=r: t.alike({"capability": 90 + r})
                        for r, t in enumerate(talks)))  # fmt: skip
    assert all("differ in capability: 90 and 91" in error.what for error in errors)


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    with pytest.raises(CommTimeout, match=r"ranks \[1\]"):
        Talk(group(0, 0.05), store).say(dict)


def test_verdicts_name_the_rank_that_was_waited_for():
    late = failure(group(2, size=4), [1, 0, 3, 0])
    assert isinstance(late, CommTimeout)
    assert late.ranks == (1,)
    assert "NaN" in late.what
    assert "stopped" in failure(group(0), [1, 1, 1, 0]).what
    lost = failure(group(0, size=4), [1, 1, 1, 3])
    assert isinstance(lost, PeerLost)
    assert lost.ranks == (2,)


def test_the_end_of_a_process_is_told_once_and_at_once():
    told, ended = [], threading.Event()

    def tell(rank):
        told.append(rank)
        ended.set()

    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        watch = Watch({2: process.pid, 3: 1 << 30}, tell)
        assert watch.watched == (2,)
        assert not ended.wait(0.05)
        process.stdin.close()
        assert ended.wait(10)
    watch.close()
    watch.close()
    assert told == [2]


def test_a_watch_is_closed_while_its_processes_go_on():
    watch = Watch({0: os.getpid()}, pytest.fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 2
    Watch({}, pytest.fail).close()
