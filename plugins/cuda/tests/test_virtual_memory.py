"""Virtual memory over a driver that is a stub on host memory: emulated."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import required
from trivet.contracts.memory import Allocator, Exporter, InfoSource, Reclaimer, StatsSource
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet_cuda import memory as package
from trivet_cuda.memory import driver as calls
from trivet_cuda.memory.driver import Driver
from trivet_cuda.memory.virtual import Span, VirtualMemory

STUB = Path(__file__).parent / "driver_stub"
GRAIN = 2 << 20
MIB = 1 << 20


@pytest.fixture(scope="module")
def library_path(tmp_path_factory):
    triton = find_spec("triton")
    if triton is None:
        required.missing(
            "triton", "the driver's header comes with Triton, which is not installed here"
        )
    home = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    compiler = shutil.which("cc")
    assert compiler, "the stub is built with a C compiler: install gcc"
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", f"-I{home}", "-o", library,
         STUB / "virtual_memory.c"],
        check=True, timeout=120,
    )  # fmt: skip
    return library


class Stub:
    """The counters and switches of the stub."""

    def __init__(self, path: Path) -> None:
        object.__setattr__(self, "library", ctypes.CDLL(str(path)))

    def __getattr__(self, name: str) -> int:
        kind = ctypes.c_ulong if name in {"capacity", "in_use"} else ctypes.c_int
        return kind.in_dll(self.library, name).value

    def __setattr__(self, name: str, value: int) -> None:
        kind = ctypes.c_ulong if name == "capacity" else ctypes.c_int
        kind.in_dll(self.library, name).value = value

    def live(self) -> int:
        return self.library.live()


@pytest.fixture
def stub(library_path):
    found = Stub(library_path)
    found.fail_at = found.broken = found.calls = 0
    found.fail_code, found.has_files, found.has_virtual, found.capacity = 999, 1, 1, 64 * MIB
    yield found
    found.fail_at = 0
    assert found.broken == 0
    assert found.depth == 0
    assert (found.live(), found.in_use) == (0, 0)


def show(span: Span, device: torch.device) -> torch.Tensor:
    """Over the host memory that stands in for the device's."""
    address = span.__cuda_array_interface__["data"][0]
    nbytes = span.__cuda_array_interface__["shape"][0]
    tensor = torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
    assert device == torch.device("cuda", 0)
    return tensor


@pytest.fixture
def memory(stub, library_path):
    return VirtualMemory(0, Driver(ctypes.CDLL(str(library_path))), show=show)


def readable(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1].startswith("rw")
    return False


def test_abilities_and_traits(memory):
    assert all(isinstance(memory, a) for a in (Allocator, Reclaimer, Exporter, InfoSource))
    assert memory.preserves == {"address", "graphs"}
    assert memory.traits().exportable == {"fd"}
    assert memory.info().total_bytes == memory.info().free_bytes == 64 * MIB


def test_a_buffer_is_rounded_written_and_given_back(memory, stub):
    buffer = memory.allocate(GRAIN + 1, tag="kv")
    assert buffer.shape == (GRAIN + 1,)
    assert stub.in_use == 2 * GRAIN
    assert buffer.data_ptr() % memory.traits().alignment == 0
    buffer.fill_(3)
    assert int(buffer[-1]) == 3
    memory.deallocate(buffer)
    assert stub.in_use == 0


def test_suspension_frees_the_memory_and_keeps_the_address(memory, stub):
    buffer = memory.allocate(3 * GRAIN, tag="kv")
    address = buffer.data_ptr()
    for _ in range(3):
        memory.suspend(buffer)
        memory.suspend(buffer)
        assert stub.in_use == 0
        assert not readable(address)
        memory.resume(buffer)
        memory.resume(buffer)
        assert buffer.data_ptr() == address
        assert readable(address)
        buffer.fill_(9)
    memory.suspend(buffer)
    memory.deallocate(buffer)


def test_what_is_held_is_counted_by_pages_and_not_while_it_sleeps(memory):
    assert isinstance(memory, StatsSource)
    before = memory.stats().allocated_bytes
    first, second = memory.allocate(1, tag=""), memory.allocate(GRAIN + 1, tag="")
    assert memory.stats().allocated_bytes - before == 3 * GRAIN
    memory.suspend(second)
    assert memory.stats().allocated_bytes - before == GRAIN
    memory.resume(second)
    for buffer in (first, second):
        memory.deallocate(buffer)
    counted = memory.stats()
    assert counted.allocated_bytes == before
    assert counted.max_allocated_bytes >= before + 3 * GRAIN


def test_no_room_is_typed_and_changes_nothing(memory, stub):
    first = memory.allocate(40 * MIB, tag="weights")
    with pytest.raises(OutOfMemory) as refused:
        memory.allocate(30 * MIB, tag="kv")
    assert (refused.value.requested_bytes, refused.value.free_bytes) == (30 * MIB, 24 * MIB)
    assert refused.value.tag == "kv"
    assert not refused.value.retryable
    memory.suspend(first)
    second = memory.allocate(30 * MIB, tag="kv")
    with pytest.raises(OutOfMemory):
        memory.resume(first)
    assert stub.in_use == 30 * MIB
    memory.deallocate(second)
    memory.resume(first)
    memory.deallocate(first)


@pytest.mark.parametrize("step", range(1, 5))
def test_an_allocation_that_fails_at_any_step_gives_back_what_it_took(memory, stub, step):
    stub.calls, stub.fail_at = 0, step
    with pytest.raises(MemoryFault, match="999, an error of the stub"):
        memory.allocate(GRAIN, tag="kv")
    assert (stub.live(), stub.in_use) == (0, 0)
    memory.deallocate(memory.allocate(GRAIN, tag="kv"))


@pytest.mark.parametrize("step", range(1, 4))
def test_a_suspension_that_fails_leaves_the_buffer_as_it_was(memory, stub, step):
    buffer = memory.allocate(GRAIN, tag="kv").fill_(5)
    stub.calls, stub.fail_at = 0, step  # wait, unmap, release
    with pytest.raises(MemoryFault, match="999"):
        memory.suspend(buffer)
    assert stub.in_use == GRAIN
    assert buffer.eq(5).all()
    memory.suspend(buffer)
    assert stub.in_use == 0
    memory.deallocate(buffer)


@pytest.mark.parametrize("step", range(1, 4))
def test_a_resumption_that_fails_leaves_it_suspended(memory, stub, step):
    buffer = memory.allocate(GRAIN, tag="kv")
    memory.suspend(buffer)
    stub.calls, stub.fail_at = 0, step  # create, map, allow
    with pytest.raises(MemoryFault, match="999"):
        memory.resume(buffer)
    assert stub.in_use == 0
    memory.resume(buffer)
    memory.deallocate(buffer)


@pytest.mark.parametrize(("step", "what"), [(2, "unmap"), (3, "give memory"), (4, "free addr")])
def test_giving_back_goes_on_behind_a_step_that_fails(memory, stub, step, what):
    buffer = memory.allocate(GRAIN, tag="kv")
    stub.calls, stub.fail_at = 0, step
    with pytest.raises(MemoryFault, match=what):
        memory.deallocate(buffer)
    assert stub.calls == 4
    stub.broken = 0  # addresses are not freed while they are mapped
    stub.library.reset()


def test_giving_back_is_silent_once_the_driver_ended(memory, stub):
    buffer = memory.allocate(GRAIN, tag="kv")
    stub.calls, stub.fail_at, stub.fail_code = 0, 1, 4  # CUDA_ERROR_DEINITIALIZED
    memory.deallocate(buffer)
    assert memory.trim(0) == 0
    stub.library.reset()


def test_what_ends_during_a_capture_goes_back_after_it(memory, stub):
    first, second = (memory.allocate(GRAIN, tag="kv") for _ in range(2))
    for buffer in (first, second):
        stub.calls, stub.fail_at, stub.fail_code = 0, 1, 900  # not while a stream is captured
        memory.deallocate(buffer)
    assert stub.in_use == 2 * GRAIN
    stub.calls = 0
    assert memory.trim(0) == GRAIN
    memory.deallocate(memory.allocate(5, tag="kv"))
    assert stub.in_use == 0


def test_a_tensor_that_cannot_be_made_gives_everything_back(stub, library_path):
    def refuse(span, device):
        raise MemoryFault("torch copied it")

    memory = VirtualMemory(0, Driver(ctypes.CDLL(str(library_path))), show=refuse)
    with pytest.raises(MemoryFault, match="copied"):
        memory.allocate(GRAIN, tag="kv")
    assert stub.live() == 0


def test_foreign_buffers_and_second_frees_are_refused(memory):
    buffer = memory.allocate(GRAIN, tag="kv")
    memory.deallocate(buffer)
    for call in (memory.deallocate, memory.suspend, memory.resume):
        with pytest.raises(InvalidBuffer):
            call(buffer)


def test_other_gpus_are_let_in_and_named(stub, library_path):
    driver = Driver(ctypes.CDLL(str(library_path)))
    memory = VirtualMemory(0, driver, peers=(1,), show=show)
    memory.deallocate(memory.allocate(GRAIN, tag="kv"))
    with pytest.raises(MemoryFault, match="cuDeviceGet"):
        driver.attribute(2, calls.VIRTUAL_MEMORY)


def test_an_exported_buffer_is_the_same_memory_and_a_suspended_one_is_refused(memory, stub):
    buffer = memory.allocate(GRAIN + 5, tag="kv").fill_(1)
    exported = memory.export(buffer, "fd")
    assert memory.export(buffer, "fd") == exported
    other = memory.open(exported, "fd")
    assert other.shape == buffer.shape
    other.fill_(6)
    assert buffer.eq(6).all()
    memory.close(other)
    with pytest.raises(InvalidBuffer):
        memory.close(other)
    for kind in ("ipc", "shm"):
        with pytest.raises(MemoryFault, match="not exported as"):
            memory.export(buffer, kind)
        with pytest.raises(MemoryFault, match="opened as"):
            memory.open(exported, kind)
    memory.suspend(buffer)
    with pytest.raises(MemoryFault, match="without memory"):
        memory.export(buffer, "fd")
    with pytest.raises((MemoryFault, OSError)):
        memory.open(exported, "fd")
    memory.deallocate(buffer)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"pid": 1}', b"\xff"])
def test_what_is_no_export_is_refused(memory, data):
    with pytest.raises(MemoryFault, match="no export"):
        memory.open(data, "fd")


def test_another_process_hands_its_file_over(memory, stub):
    """The opener is the owner's parent, which the system allows everywhere."""
    program = """
import json, os
fd = os.memfd_create("memory")
os.ftruncate(fd, 2 << 20)
os.pwrite(fd, bytes([42]), 7)
said = {"pid": os.getpid(), "fd": fd, "nbytes": 100, "size": 2 << 20}
print(json.dumps(said), flush=True)
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        exported = child.stdout.readline()
        buffer = memory.open(exported, "fd")
        assert int(buffer[7]) == 42
        memory.close(buffer)
        child.communicate(b"\n", 60)
    with pytest.raises(MemoryFault, match="cannot be reached"):
        memory.open(exported, "fd")


def test_a_driver_without_files_exports_nothing(stub, library_path):
    stub.has_files = 0
    memory = VirtualMemory(0, Driver(ctypes.CDLL(str(library_path))), show=show)
    assert memory.traits().exportable == frozenset()
    buffer = memory.allocate(GRAIN, tag="kv")
    with pytest.raises(MemoryFault, match="the driver cannot"):
        memory.export(buffer, "fd")
    memory.deallocate(buffer)


def test_where_the_driver_cannot_do_it_there_is_a_reason_and_torch_serves(
    stub, library_path, tmp_path, monkeypatch
):
    before = stub.starts
    assert calls.absence(str(library_path)) == ""
    assert "cannot be loaded" in calls.absence(str(tmp_path / "none.so"))
    assert "has no cuMemAddressReserve" in calls.absence("libm.so.6")
    assert stub.starts == before  # nobody started the driver for that
    stub.has_virtual = 0
    memory = VirtualMemory(0, Driver(ctypes.CDLL(str(library_path))), show=show)
    for call in (memory.traits, lambda: memory.allocate(5, tag="kv")):
        with pytest.raises(MemoryFault, match="no virtual memory on cuda:0"):
            call()
    monkeypatch.setattr(package, "absence", lambda: "no")
    assert package.open_memory.__wrapped__(0) is None


def test_no_file_stays_open(memory):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the entries vanish while they are read
    for _ in range(3):
        buffer = memory.allocate(GRAIN, tag="kv")
        memory.close(memory.open(memory.export(buffer, "fd"), "fd"))
        memory.suspend(buffer)
        memory.deallocate(buffer)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
