"""Allocators of the tiers host, shared and disk, and blocks in files."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet.contracts.memory import Allocator, Exporter, Tier
from trivet.errors import DataCorrupt, InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.buffers import Buffers
from trivet.memory.tiers import (
    BlockFiles,
    DiskAllocator,
    HostAllocator,
    SharedAllocator,
    block_files,
    shared,
)

FACTS = {"dtype": "bfloat16", "layout": "NHD"}


@pytest.fixture(params=[HostAllocator, DiskAllocator, SharedAllocator])
def allocator(request, tmp_path):
    made = HostAllocator() if request.param is HostAllocator else request.param(tmp_path)
    yield made
    if isinstance(made, SharedAllocator):
        made.end()
    elif isinstance(made, DiskAllocator):
        made.close()


def test_every_tier_is_an_allocator_of_zeroed_pages(allocator):
    assert isinstance(allocator, Allocator)
    heap = Buffers(allocator)
    for nbytes in (0, 1, 4096, 10_001):
        buffer = heap.allocate(nbytes)
        assert not buffer.raw.any()
        buffer.raw.fill_(7)
        assert int(buffer.raw.sum()) == 7 * nbytes
        buffer.free()
    assert allocator.traits().zeroed


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 70])
def test_no_room_is_typed_and_leaves_nothing(allocator, nbytes, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(nbytes, tag="kv_cache")
    assert (caught.value.requested_bytes, caught.value.tag) == (nbytes, "kv_cache")
    assert sorted(tmp_path.rglob("*")) == before


def test_another_tiers_buffer_is_refused(tmp_path):
    for allocator in (DiskAllocator(tmp_path), SharedAllocator(tmp_path)):
        with pytest.raises(InvalidBuffer):
            allocator.deallocate(torch.empty(4, dtype=torch.uint8))


def test_files_go_with_their_buffer_and_the_folder_with_its_allocator(tmp_path):
    allocator = DiskAllocator(tmp_path)
    assert allocator.traits().tier is Tier.DISK
    kept, freed = allocator.allocate(10, tag=""), allocator.allocate(10, tag="")
    allocator.deallocate(freed)
    assert len(list(allocator.folder.iterdir())) == 1
    kept.fill_(3)
    del allocator
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert int(kept.sum()) == 30  # still mapped: its last view ends it


# --- shared ------------------------------------------------------------------------------------

CHILD = """
import sys
from trivet.memory.tiers import SharedAllocator
allocator = SharedAllocator(sys.argv[1])
buffer = allocator.allocate(5000, tag="kv_cache")
buffer.fill_(9)
print(allocator.export(buffer, "shm").decode(), flush=True)
sys.stdin.readline()
print(int(buffer.sum()), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def child(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def test_a_segment_is_opened_by_another_process_and_its_death_is_noticed(child, tmp_path):
    exported = child.stdout.readline().strip().encode()
    here = SharedAllocator(tmp_path)
    assert isinstance(here, Exporter)
    opened, twice = here.open(exported, "shm"), here.open(exported, "shm")
    assert int(opened.sum()) == 45_000
    opened.zero_()
    here.close(twice)
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "0\n"
    assert here.give_up_ended() == []
    child.kill()  # it cannot clean up
    child.wait()
    (given_up,) = here.give_up_ended()
    assert given_up.startswith(str(tmp_path))
    assert int(opened.sum()) == 0  # a tensor that is still held is memory
    with pytest.raises(InvalidBuffer):
        here.close(opened)
    with pytest.raises(MemoryFault, match="has ended"):
        here.open(exported, "shm")
    left = [p for p in tmp_path.iterdir() if not p.name.startswith(here.name)]
    assert len(left) == 2
    SharedAllocator(tmp_path)  # the next owner removes what a dead one left
    assert not any(p.exists() for p in left)
    here.end()


def test_a_fork_neither_keeps_nor_removes_the_segments_of_its_parent(tmp_path):
    here = SharedAllocator(tmp_path)
    here.allocate(10, tag="")
    here._end.detach()
    read, write = os.pipe()
    shared._leave(tmp_path, here.name, os.dup(read), os.getpid() + 1)
    os.close(read)
    os.close(write)
    assert len(list(tmp_path.iterdir())) == 2
    shared._remove(tmp_path, here.name)


@pytest.mark.parametrize(
    "exported",
    [b"", b"[]", b"{}", b'{"owner": "../../etc", "part": "1", "nbytes": 3}',
     b'{"owner": "trivet-0123456789abcdef", "part": "../x", "nbytes": 3}',
     b'{"owner": "trivet-0123456789abcdef", "part": "1", "nbytes": true}'],
)  # fmt: skip
def test_what_is_no_export_is_refused(exported, tmp_path):
    here = SharedAllocator(tmp_path)
    with pytest.raises(MemoryFault, match="no export"):
        here.open(exported, "shm")
    here.end()


def test_exports_that_do_not_fit_are_refused(tmp_path):
    here, other = SharedAllocator(tmp_path), SharedAllocator(tmp_path)
    buffer = here.allocate(10, tag="")
    exported = here.export(buffer, "shm")
    for call in (lambda: here.export(buffer, "fd"), lambda: other.open(exported, "fd"),
                 lambda: other.export(buffer, "shm"),
                 lambda: other.open(exported.replace(b"10", b"11"), "shm")):  # fmt: skip
        with pytest.raises(MemoryFault):
            call()
    here.deallocate(buffer)
    with pytest.raises(MemoryFault, match="cannot be opened"):
        other.open(exported, "shm")
    here.end()
    here.end()
    with pytest.raises(MemoryFault, match="has ended"):
        other.open(exported, "shm")
    other.end()
    assert not list(tmp_path.iterdir())


# --- blocks in files ---------------------------------------------------------------------------


def contents(n, seed=0):
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).byte()


def test_contents_come_back_and_are_replaced(tmp_path):
    files = BlockFiles(tmp_path)
    for n in (0, 1, 70_000):
        files.write("a", contents(n), FACTS)
        back = torch.empty(n, dtype=torch.uint8)
        files.read("a", back, FACTS)
        assert torch.equal(back, contents(n))
    assert [p.name for p in files.folder.iterdir()] == ["a.block"]
    files.drop("a")
    files.drop("a")
    with pytest.raises(FileNotFoundError):
        files.read("a", back, FACTS)
    with pytest.raises(MemoryFault, match="cannot name"):
        files.write("../a", contents(1), FACTS)
    files.close()
    files.close()
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    files = BlockFiles(tmp_path)
    files.write("a", contents(100), FACTS)

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutOfMemory):
        files.write("a", contents(100, seed=1), FACTS)
    back = torch.empty(100, dtype=torch.uint8)
    files.read("a", back, FACTS)
    assert torch.equal(back, contents(100))
    assert len(list(files.folder.iterdir())) == 1
    files.close()


def test_other_facts_and_sizes_are_foreign(tmp_path):
    files = BlockFiles(tmp_path)
    files.write("a", contents(100), FACTS)
    with pytest.raises(DataCorrupt, match=r'a\.block: it holds .*"NHD"'):
        files.read("a", torch.empty(100, dtype=torch.uint8), FACTS | {"layout": "HND"})
    with pytest.raises(DataCorrupt, match="100 bytes, 99 were"):
        files.read("a", torch.empty(99, dtype=torch.uint8), FACTS)
    files.close()


def test_a_file_of_another_version_is_foreign(tmp_path, monkeypatch):
    files = BlockFiles(tmp_path)
    monkeypatch.setattr(block_files, "VERSION", 2)
    files.write("a", contents(100), FACTS)
    monkeypatch.undo()
    with pytest.raises(DataCorrupt, match=r"a\.block: it is of version 2, this is 1"):
        files.read("a", torch.empty(100, dtype=torch.uint8), FACTS)
    files.close()


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    files = BlockFiles(tmp_path_factory.mktemp("blocks"))
    files.write("a", contents(300), FACTS)
    yield files, files.path("a").read_bytes()
    files.close()


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_no_damage_passes(one_file, data):
    files, whole = one_file
    damaged = bytearray(whole)
    how = data.draw(st.sampled_from(["flip", "cut", "grow", "swap"]))
    if how == "flip":
        places = st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=5, unique=True)
        for place in data.draw(places):
            damaged[place] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del damaged[data.draw(st.integers(0, len(whole) - 1)) :]
    elif how == "grow":
        damaged += data.draw(st.binary(min_size=1, max_size=20))
    else:
        damaged = bytearray(data.draw(st.binary(max_size=400)))
    files.path("a").write_bytes(damaged)
    with pytest.raises(DataCorrupt, match=r"a\.block: "):
        files.read("a", torch.empty(300, dtype=torch.uint8), FACTS)


def test_every_single_byte_matters(one_file):
    files, whole = one_file
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        files.path("a").write_bytes(damaged)
        with pytest.raises(DataCorrupt):
            files.read("a", torch.empty(300, dtype=torch.uint8), FACTS)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    for make in (DiskAllocator, BlockFiles):
        with pytest.raises(MemoryFault, match=r"can be made in .*absent"):
            make(tmp_path / "absent")
