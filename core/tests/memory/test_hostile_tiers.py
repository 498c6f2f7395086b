"""Files, folders and processes that farther tiers cannot trust."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import warnings

import pytest
import torch

from trivet.errors import DataCorrupt, InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.keys import keys_of
from trivet.memory.spill import Spill
from trivet.memory.tiers import BlockFiles, DiskAllocator, HostAllocator, SharedAllocator
from trivet.memory.tiers.mapping import bytes_of
from trivet.memory.tiers.shared import owner_lives, remove_left_behind

MAKERS = {"disk": DiskAllocator, "shared": SharedAllocator, "blocks": BlockFiles}
CONTENTS = torch.arange(200, dtype=torch.uint8)


def in_a_fork(work):
    """What a fork of this process answers: nothing when ``work`` returns, else its error."""
    there, here = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons: of threads of torch
        child = os.fork()
    if not child:
        answer = b""
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # told to the parent
            answer = f"{type(error).__name__}: {error}".encode()
        os.write(here, answer)
        os._exit(0)
    os.close(here)
    with os.fdopen(there, "rb") as told:
        answer = told.read()
    os.waitpid(child, 0)
    return answer.decode()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("folder", ["none", "file", "/proc/self", "\0", "x" * 300])
def test_a_folder_that_does_not_do_is_one_error(make, folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MemoryFault, match=r"fix|folder"):
        make(tmp_path / folder)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("make", [DiskAllocator, SharedAllocator])
def test_a_folder_that_went_away_is_one_error(make, tmp_path):
    made = make(tmp_path)
    kept = made.allocate(10, tag="a")
    for path in sorted(made.folder.rglob("*"), reverse=True):
        path.unlink()
    if make is DiskAllocator:
        made.folder.rmdir()
        with pytest.raises(MemoryFault, match="No such file"):
            made.allocate(10, tag="kv_cache")
    kept.fill_(3)
    made.deallocate(kept)
    with pytest.raises(InvalidBuffer):
        made.deallocate(kept)


@pytest.mark.parametrize("make", [DiskAllocator, SharedAllocator, lambda _: HostAllocator()])
@pytest.mark.parametrize("nbytes", [-1, 1.5, float("nan"), "8", None])
def test_a_size_that_is_none_is_refused(make, nbytes, tmp_path):
    made = make(tmp_path)
    with pytest.raises(MemoryFault, match="cannot be made"):
        made.allocate(nbytes, tag="")
    with pytest.raises(OutOfMemory):
        made.allocate(1 << 70, tag="kv_cache")
    made.deallocate(made.allocate(8, tag=""))


def test_a_file_that_cannot_be_removed_stays_a_buffer(tmp_path, monkeypatch):
    made = DiskAllocator(tmp_path)
    buffer = made.allocate(10, tag="")
    with monkeypatch.context() as patch:
        patch.setattr(
            "pathlib.Path.unlink",
            lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EACCES, "no")),
        )
        with pytest.raises(MemoryFault, match="no"):
            made.deallocate(buffer)
    made.deallocate(buffer)
    made.close()


@pytest.mark.parametrize("make", [DiskAllocator, SharedAllocator])
def test_a_fork_leaves_the_files_of_its_parent(make, tmp_path):
    made = make(tmp_path)
    buffer = made.allocate(10, tag="")
    files = sorted(made.folder.iterdir())
    assert in_a_fork(lambda: made.deallocate(buffer)) == ""
    assert "this is a fork of it" in in_a_fork(lambda: made.allocate(10, tag=""))
    assert sorted(made.folder.iterdir()) == files
    made.deallocate(made.allocate(10, tag=""))
    made.deallocate(buffer)


def test_a_fork_drops_and_writes_no_block_of_its_parent(tmp_path):
    files = BlockFiles(tmp_path)
    files.write("a", CONTENTS, {})
    assert in_a_fork(lambda: files.drop("a")) == ""
    assert "this is a fork of it" in in_a_fork(lambda: files.write("a", CONTENTS + 1, {}))
    assert in_a_fork(files.close) == ""
    into = torch.empty_like(CONTENTS)
    files.read("a", into, {})
    assert torch.equal(into, CONTENTS)


def test_no_more_open_files_is_no_reason_to_remove_what_others_own(tmp_path, monkeypatch):
    mine = SharedAllocator(tmp_path)
    buffer = mine.allocate(8, tag="")
    other = SharedAllocator(tmp_path)

    def full(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("os.open", full)
        assert owner_lives(tmp_path, mine.name)
        assert remove_left_behind(tmp_path) == []
        assert other.give_up_ended() == []
        with pytest.raises(MemoryFault, match="Too many open files"):
            other.open(mine.export(buffer, "shm"), "shm")
        with pytest.raises(MemoryFault, match="Too many open files"):
            mine.allocate(8, tag="")
        with pytest.raises(MemoryFault, match="Too many open files"):
            SharedAllocator(tmp_path)
    other.close(other.open(mine.export(buffer, "shm"), "shm"))


def test_a_lock_that_cannot_be_had_leaves_no_file(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(MemoryFault, match="No locks available"):
        SharedAllocator(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("exported", [
    b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"owner": "../x", "part": "1", "nbytes": 1}',
    b'{"owner": "trivet-0123456789abcdef", "part": "1", "nbytes": -1}',
    b'{"owner": "trivet-0123456789abcdef", "part": "1", "nbytes": 1e999}', None, 5,
])  # fmt: skip
def test_an_export_that_is_none_is_refused(exported, tmp_path):
    with pytest.raises(MemoryFault, match="no export"):
        SharedAllocator(tmp_path).open(exported, "shm")


ODD_TENSORS = {
    "strided": torch.zeros(20, dtype=torch.uint8)[::2], "elsewhere": torch.empty(9, device="meta"),
    "sparse": torch.zeros(9).to_sparse(), "none": None, "bytes": b"123",
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD_TENSORS.values(), ids=ODD_TENSORS)
def test_contents_that_are_no_memory_of_the_host_are_refused(odd, tmp_path):
    files = BlockFiles(tmp_path)
    files.write("a", CONTENTS, {})
    for call in (lambda: files.write("a", odd, {}), lambda: files.read("a", odd, {}),
                 lambda: bytes_of(odd)):  # fmt: skip
        with pytest.raises(MemoryFault):
            call()
    files.read("a", torch.empty_like(CONTENTS), {})
    asleep = torch.zeros(9, dtype=torch.uint8)
    asleep.untyped_storage().resize_(0)
    with pytest.raises(MemoryFault, match="no memory now"):
        bytes_of(asleep)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0", "x" * 101, "\udcff", None, 5, b"a"])
def test_a_name_that_is_none_is_refused(name, tmp_path):
    files = BlockFiles(tmp_path)
    if name == "..":
        assert files.path(name).parent == files.folder
        return
    for call in (lambda: files.write(name, CONTENTS, {}), lambda: files.drop(name)):
        with pytest.raises(MemoryFault, match="cannot name"):
            call()


def test_facts_that_no_file_takes_are_refused(tmp_path):
    files = BlockFiles(tmp_path)
    ring = {}
    ring["ring"] = ring
    for facts in ({"a": object()}, {"a": {1, 2}}, ring, {"a": CONTENTS}):
        with pytest.raises(MemoryFault, match="cannot stand in a file"):
            files.write("a", CONTENTS, facts)
        with pytest.raises(MemoryFault, match="cannot stand in a file"):
            Spill(KvBlocks(2, 1), [torch.zeros(2, 4)], host_bytes=64, facts=facts)
    assert not list(files.folder.iterdir())


def test_every_cut_and_every_flipped_bit_is_found(tmp_path):
    files = BlockFiles(tmp_path)
    facts = {"layers": ["bfloat16"]}
    files.write("a", CONTENTS, facts)
    path, into = files.path("a"), torch.empty_like(CONTENTS)
    good = path.read_bytes()
    cuts = [good[:n] for n in range(len(good))]
    flips = [bytes([*good[:i], good[i] ^ 1 << i % 8, *good[i + 1 :]]) for i in range(len(good))]
    for bad in (*cuts, *flips, good + b"\0", good[::-1], good + good):
        path.write_bytes(bad)
        with pytest.raises(DataCorrupt, match=r"a\.block"):
            files.read("a", into, facts)
    path.write_bytes(good)
    files.read("a", into, facts)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        files.read("a", into, facts)


def test_a_full_medium_leaves_what_was_there(tmp_path):
    files = BlockFiles(tmp_path)
    files.write("a", CONTENTS, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(OutOfMemory, match="has no room for 1000 bytes"):
            files.write("a", torch.zeros(1000, dtype=torch.uint8), {})
        with pytest.raises(OutOfMemory):
            DiskAllocator(tmp_path).allocate(1000, tag="kv_cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    into = torch.empty_like(CONTENTS)
    files.read("a", into, {})
    assert torch.equal(into, CONTENTS)
    assert [p.name for p in files.folder.iterdir()] == ["a.block"]


SPILLS = """
import sys, torch
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.keys import keys_of
from trivet.memory.spill import Spill
caches = [torch.zeros(2, 4)]
pool = KvBlocks(2, 1)
spill = Spill(pool, caches, host_bytes=16, disk_bytes=160, folder=sys.argv[1])
for i in range(30):
    (block,) = pool.allocate(1)
    caches[0][block] = i % 7 + int(sys.argv[2])
    pool.publish(block, keys_of([i % 7], 1)[0])
    pool.free([block])
    for seen in range(7):
        keys = keys_of([seen], 1)
        held = spill.fetch(keys)
        assert all(caches[0][b].tolist() == [seen + int(sys.argv[2])] * 4 for b in held)
        pool.free(held)
assert not spill.stats.corrupt + spill.stats.failed and spill.stats.from_disk
"""


def test_two_processes_spill_into_one_folder(tmp_path):
    command = [sys.executable, "-c", SPILLS, str(tmp_path)]
    both = [subprocess.Popen([*command, n], stderr=subprocess.PIPE) for n in ("0", "100")]
    for process in both:
        assert process.communicate(timeout=100)[1] == b""
        assert process.returncode == 0
    assert not list(tmp_path.iterdir())  # also at the exit of an interpreter that closed nothing


@pytest.mark.parametrize("sizes", [
    {"host_bytes": float("nan")}, {"host_bytes": -1}, {"host_bytes": "64"}, {"host_bytes": None},
    {"host_bytes": 64, "disk_bytes": float("nan")}, {"host_bytes": 64, "disk_bytes": -1},
])  # fmt: skip
def test_a_tier_of_a_size_that_is_none_is_refused(sizes, tmp_path):
    pool = KvBlocks(2, 1)
    with pytest.raises(MemoryFault):
        Spill(pool, [torch.zeros(2, 4)], folder=tmp_path, **sizes)
    assert pool.on_evict is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("caches", [[torch.zeros(2, 0)], [None], ["x"], [(torch.zeros(2, 4),)]])
def test_caches_that_are_none_are_refused(caches, tmp_path):
    with pytest.raises(MemoryFault):
        Spill(KvBlocks(2, 1), caches, host_bytes=64, folder=tmp_path)
    with pytest.raises(MemoryFault):
        Spill(KvBlocks(0, 1), [torch.zeros(0, 4)], host_bytes=64, folder=tmp_path)


def test_a_folder_that_does_not_do_leaves_no_spill(tmp_path):
    pool, host = KvBlocks(2, 1), HostAllocator()
    with pytest.raises(MemoryFault, match="no folder"):
        Spill(pool, [torch.zeros(2, 4)], host_bytes=64, disk_bytes=64, host=host,
              folder=tmp_path / "none")  # fmt: skip
    assert pool.on_evict is None


@pytest.mark.parametrize("most", [-1, 1.5, float("nan"), "1"])
def test_a_fetch_of_a_number_that_is_none_takes_nothing(most, tmp_path):
    pool = KvBlocks(3, 1)
    spill = Spill(pool, [torch.zeros(3, 4)], host_bytes=1 << 10, folder=tmp_path)
    keys = keys_of(range(3), 1)
    for key in keys:
        (block,) = pool.allocate(1)
        pool.publish(block, key)
        pool.free([block])
    pool.free(pool.allocate(3))
    with pytest.raises(MemoryFault, match="cannot be made"):
        spill.fetch(keys, most=most)
    assert pool.num_free == 3
