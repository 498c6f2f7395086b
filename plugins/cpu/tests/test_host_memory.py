"""Mapped pages: what is really there, by what the system says of this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trivet.contracts.memory import Allocator, Exporter, Reclaimer, StatsSource, Trimmer
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory import DeviceMemory
from trivet_cpu import plugin
from trivet_cpu.memory import open_memory, pages, private, room
from trivet_cpu.memory.private import PrivateMemory
from trivet_cpu.memory.shared import SharedMemory

pytestmark = pytest.mark.skipif(bool(pages.missing()), reason=pages.missing())

MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * pages.PAGE


@pytest.fixture(params=[PrivateMemory, SharedMemory])
def memory(request):
    return request.param()


def test_abilities_are_what_they_are_declared_to_be():
    own = PrivateMemory()
    assert all(isinstance(own, a) for a in (Allocator, Trimmer, Reclaimer, StatsSource))
    assert not isinstance(own, Exporter)
    assert all(isinstance(own.shared, a) for a in (Allocator, Reclaimer, Exporter))
    assert isinstance(plugin.trivet_memory(None), PrivateMemory)
    assert open_memory() is open_memory()


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 3 * MIB + 1])
def test_buffers_are_zeroed_aligned_and_written_to_their_end(memory, nbytes):
    for _ in range(2):  # the second is of kept pages, where there are any
        buffer = memory.allocate(nbytes, tag="kv")
        assert (buffer.dtype, buffer.shape) == (torch.uint8, (nbytes,))
        assert buffer.data_ptr() % memory.traits().alignment == 0
        assert not buffer.any()
        buffer.fill_(255)
        memory.deallocate(buffer)


def test_suspension_lowers_what_is_resident_and_keeps_the_address(memory):
    buffer = memory.allocate(32 * MIB, tag="kv")
    buffer.fill_(7)
    before, address = resident(), buffer.data_ptr()
    memory.suspend(buffer)
    memory.suspend(buffer)
    assert before - resident() > 28 * MIB
    memory.resume(buffer)
    memory.resume(buffer)
    assert buffer.data_ptr() == address
    assert not buffer.any()
    assert resident() > before - 4 * MIB
    memory.suspend(buffer)
    memory.deallocate(buffer)


def test_trimming_lowers_what_is_resident():
    memory = PrivateMemory()
    for nbytes in (24 * MIB, 16 * MIB):
        memory.deallocate(memory.allocate(nbytes, tag="").fill_(1))
    before = resident()
    assert memory.stats().reserved_bytes == 40 * MIB
    assert memory.trim(1) == 24 * MIB
    assert before - resident() > 20 * MIB
    assert memory.trim(0) == 16 * MIB
    assert memory.trim(0) == 0
    assert before - resident() > 36 * MIB
    assert memory.stats().reserved_bytes == 0
    assert memory.stats().max_reserved_bytes == 40 * MIB


def test_no_more_is_kept_than_was_said():
    memory = PrivateMemory(keep_bytes=MIB)
    memory.deallocate(memory.allocate(2 * MIB, tag=""))
    assert memory.stats().reserved_bytes == 0


def test_a_view_that_was_kept_against_the_rules_reads_zeros_and_no_foreign_memory():
    memory = PrivateMemory(keep_bytes=0)
    buffer = memory.allocate(MIB, tag="").fill_(3)
    view = buffer[:10]
    memory.deallocate(buffer)
    del buffer
    assert not view.any()


def test_foreign_tensors_and_second_frees_are_refused(memory):
    buffer = memory.allocate(10, tag="")
    memory.deallocate(buffer)
    for call in (memory.deallocate, memory.suspend, memory.resume):
        for wrong in (buffer, torch.zeros(10, dtype=torch.uint8)):
            with pytest.raises(InvalidBuffer):
                call(wrong)


def test_what_cannot_be_there_is_refused_and_nothing_changes(memory, monkeypatch):
    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for nbytes in (1 << 50, 1 << 62):
        with pytest.raises(OutOfMemory) as refused:
            memory.allocate(nbytes, tag="kv")
        assert refused.value.requested_bytes == nbytes
    buffer = memory.allocate(100, tag="")
    memory.suspend(buffer)
    with monkeypatch.context() as patch:
        patch.setattr(room, "free_bytes", lambda _: 0)
        with pytest.raises(OutOfMemory):
            memory.resume(buffer)
    memory.resume(buffer)
    memory.deallocate(buffer)
    del buffer, refused  # and with it the mapping, which holds a file
    with monkeypatch.context() as patch:  # the kernel itself refuses
        patch.setattr(room, "free_bytes", lambda _: None)
        with pytest.raises(OutOfMemory):
            memory.allocate(1 << 62, tag="")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == files


def test_huge_pages_that_nobody_set_apart_are_refused_with_the_fix():
    if Path("/proc/sys/vm/nr_hugepages").read_text().strip() != "0":
        pytest.skip("not_run: this machine has huge pages set apart")
    with pytest.raises(OutOfMemory, match="nr_hugepages"):
        PrivateMemory(huge=True).allocate(4 * MIB, tag="")


def test_large_buffers_begin_at_a_huge_page():
    huge = pages.huge_page_bytes()
    if huge is None:
        pytest.skip("not_run: no transparent huge pages here")
    buffer = PrivateMemory().allocate(2 * huge, tag="")
    assert buffer.data_ptr() % huge == 0


def test_every_page_is_written_at_once_where_there_are_more_nodes(monkeypatch):
    monkeypatch.setattr(private, "nodes", lambda: 2)
    before = resident()
    buffer = PrivateMemory().allocate(16 * MIB, tag="")
    assert resident() - before > 12 * MIB
    assert buffer.numel() == 16 * MIB


def test_nodes_huge_pages_and_room_are_read_from_the_system(tmp_path):
    assert pages.nodes(tmp_path) == 1
    assert pages.huge_page_bytes(tmp_path) is None
    assert room.free_bytes(tmp_path) is None
    for name in ("node0", "node1", "node12", "nodes"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "enabled").write_text("always [madvise] never\n")
    (folder / "hpage_pmd_size").write_text("2097152\n")
    pages.nodes.cache_clear()
    pages.huge_page_bytes.cache_clear()
    assert pages.nodes(tmp_path) == 3
    assert pages.huge_page_bytes(tmp_path) == 2 * MIB
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 4096 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    assert room.free_bytes(tmp_path) == 4 * MIB
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("900\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 50\n")
    assert room.free_bytes(tmp_path) == 150


OPENS = """
import sys
from trivet.errors import MemoryFault
from trivet_cpu.memory.shared import SharedMemory
memory = SharedMemory()
for line in sys.stdin:
    try:
        buffer = memory.open(bytes.fromhex(line.strip()), "shm")
        print(buffer.numel(), int(buffer[0]), flush=True)
        buffer.fill_(9)
        memory.close(buffer)
    except MemoryFault as error:
        print(type(error).__name__, flush=True)
    print("done", flush=True)
"""


def test_another_process_opens_writes_and_is_refused_once_it_is_gone():
    memory = SharedMemory()
    buffer = memory.allocate(5000, tag="exchange")
    buffer.fill_(4)
    exported = memory.export(buffer, "shm")
    child = subprocess.Popen(
        [sys.executable, "-c", OPENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(data: bytes) -> str:
        child.stdin.write(data.hex() + "\n")
        child.stdin.flush()
        answer = child.stdout.readline().strip()
        assert child.stdout.readline() == "done\n"
        return answer

    with child:
        assert ask(exported) == "5000 4"
        assert buffer.eq(9).all()
        assert ask(b"nonsense") == "MemoryFault"
        memory.deallocate(buffer)
        assert ask(exported) == "MemoryFault"
        child.stdin.close()
        assert child.wait(60) == 0


def test_exports_of_other_kinds_and_strangers_are_refused():
    memory = SharedMemory()
    buffer = memory.allocate(10, tag="")
    with pytest.raises(MemoryFault, match="ipc"):
        memory.export(buffer, "ipc")
    again = memory.open(memory.export(buffer, "shm"), "shm")
    again[3] = 5
    assert buffer[3] == 5
    memory.close(again)
    with pytest.raises(InvalidBuffer):
        memory.close(again)


def test_caches_come_from_it_and_go_back_under_the_account():
    own = PrivateMemory()
    memory = DeviceMemory(torch.device("cpu"), own)
    caches = memory.kv_caches(2, 4, 16, 2, 8, torch.float32)
    assert memory.ledger.by_place() == {("kv_cache", "host"): 4 * 4096}
    assert memory.stats().allocated_bytes == 4 * 4096
    caches.release()
    assert memory.stats().allocated_bytes == 0
    assert memory.budget.reclaim(1) == {"vendor's cache": 4096}
