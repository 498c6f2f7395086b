"""``dev.memory`` in the hands of somebody who errs, over vendors that do, and in finalisers."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest
import torch

import trivet.memory
from sleepers import CPU, Plain
from trivet.contracts.memory import Tier, Traits
from trivet.errors import MemoryFault, OutOfMemory, PluginBroken
from trivet.memory import DeviceMemory
from trivet.memory.buffers import Buffers
from trivet.memory.sleep import Sleep

ODD_SIZES = [-1, 1.5, float("nan"), float("inf"), "8", None]


@pytest.mark.parametrize("provided", [None, Plain()])
@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_size_that_is_none_makes_no_tensor(provided, size):
    memory = DeviceMemory(CPU, provided)
    calls = [
        lambda: memory.empty((2, size)),
        lambda: memory.kv_caches(size, 1, 1, 1, 1, torch.half),
    ]
    calls += [
        lambda at=at: memory.kv_caches(1, *[size if i == at else 1 for i in range(4)], torch.half)
        for at in range(4)
    ]
    for call in calls:
        with pytest.raises(MemoryFault, match="cannot be made"):
            call()
    assert (memory.ledger.used_bytes, memory.ledger.peak_bytes) == (0, 0)


@pytest.mark.parametrize("shape", [5, None, "8", {1: 2}, torch.zeros(3).to_sparse()])
def test_a_shape_that_is_none_makes_no_tensor(shape):
    memory = DeviceMemory(CPU)
    if shape == {1: 2}:
        assert memory.empty(shape).shape == (1,)  # its numbers are 1
        return
    with pytest.raises(MemoryFault, match="cannot be made"):
        memory.empty(shape)


def test_a_shape_is_read_once():
    assert DeviceMemory(CPU).empty(n for n in (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("dtype", [None, "float32", float, 4])
def test_a_dtype_that_is_none_makes_no_tensor(dtype):
    memory = DeviceMemory(CPU)
    for call in (lambda: memory.empty((2,), dtype), lambda: memory.kv_caches(1, 1, 1, 1, 1, dtype)):
        with pytest.raises(MemoryFault, match=r"is no torch\.dtype"):
            call()
    assert memory.ledger.used_bytes == 0


class Vendor(Plain):
    """Everything that an allocator may say besides, wrongly."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.inside, self.twice = answer, threading.Lock(), False

    def alone(self):
        self.twice |= not self.inside.acquire(blocking=False)
        self.inside.release()

    def info(self):
        return self.answer()

    def stats(self):
        return self.answer()

    def allocate(self, nbytes, *, tag):
        if nbytes > 64:
            raise torch.OutOfMemoryError("torch words")
        return super().allocate(nbytes, tag=tag)


@pytest.mark.parametrize("answer", [lambda: None, lambda: {"free_bytes": 1}, lambda: 1 / 0])
def test_numbers_that_a_vendor_cannot_give_are_one_error(answer):
    memory = DeviceMemory(CPU, Vendor(answer))
    for call in (memory.info, memory.stats, memory.holdings):
        with pytest.raises(PluginBroken, match=r"memory (info|stats) (gives|raises)"):
            call()
    caches = memory.kv_caches(1, 1, 1, 1, 1, torch.half)
    caches.release()


def test_caches_that_do_not_fit_and_do_not_go_back_say_first_that_they_do_not_fit():
    class Clinging(Vendor):
        left = 3

        def allocate(self, nbytes, *, tag):
            self.left -= 1
            if not self.left:
                raise torch.OutOfMemoryError("torch words")
            return super().allocate(nbytes, tag=tag)

        def deallocate(self, buffer):
            raise KeyError("mine")

    memory = DeviceMemory(CPU, Clinging(None))
    with pytest.raises(OutOfMemory) as caught:
        memory.kv_caches(2, 1, 1, 1, 1, torch.half)
    assert "does not take 2 bytes back" in caught.value.__notes__[0]
    assert memory.ledger.used_bytes == 0


def test_a_scope_that_fails_says_so_before_what_its_buffer_does():
    class Clinging(Plain):
        def deallocate(self, buffer):
            raise KeyError("mine")

    heap = Buffers(Clinging())
    with pytest.raises(ZeroDivisionError) as caught, heap.allocate(8):
        raise ZeroDivisionError
    assert "does not take 8 bytes back" in caught.value.__notes__[0]
    with pytest.raises(PluginBroken), heap.allocate(8):
        pass


def test_a_device_that_cannot_be_waited_for_keeps_its_memory(monkeypatch):
    def broken(_):
        raise RuntimeError("an illegal address")

    sleep = Sleep(torch.device("meta"))
    heap = Buffers(Plain())
    sleep.watch(heap)
    buffer = heap.allocate(8, tag="kv_cache")
    monkeypatch.setattr("torch.accelerator.synchronize", broken)
    with pytest.raises(MemoryFault, match="nothing sleeps: an illegal address"):
        sleep.sleep(discard=["kv_cache"])
    assert buffer.raw.numel() == 8


def test_messages_name_the_device_as_it_was_asked_for():
    vendor = DeviceMemory(CPU, Vendor(lambda: None), name="acme:3")
    own = trivet.memory.open(CPU, name="acme:3")
    for call in (lambda: vendor.kv_caches(1, 1, 1, 1, 64, torch.half),
                 lambda: own.empty((1 << 50,))):  # fmt: skip
        with pytest.raises(OutOfMemory, match="acme:3 has no room for"):
            call()
    with pytest.raises(PluginBroken, match="brings to acme:3 cannot be used"):
        DeviceMemory(CPU, object(), name="acme:3")
    assert own.holdings().device == "acme:3"
    assert DeviceMemory(CPU).holdings().device == "cpu"


def test_a_vendor_is_never_asked_twice_at_a_time():
    class Busy(Vendor):
        def traits(self):
            return Traits(CPU, Tier.DEVICE)

        def _turn(self):
            if not self.inside.acquire(blocking=False):
                self.twice = True
                return
            time.sleep(0.0002)  # others come to their turn
            self.inside.release()

        def allocate(self, nbytes, *, tag):
            self._turn()
            return super().allocate(nbytes, tag=tag)

        def deallocate(self, buffer):
            self._turn()
            super().deallocate(buffer)

        def trim(self, nbytes):
            self._turn()
            return 0

        def info(self):
            self._turn()
            return trivet.contracts.memory.MemoryInfo()

        def stats(self):
            self._turn()
            return trivet.contracts.memory.Stats()

    vendor = Busy(None)
    memory = DeviceMemory(CPU, vendor)
    failures = []

    def work(call):
        try:
            for _ in range(100):
                call()
        except Exception as error:  # noqa: BLE001  # shown by the assertion
            failures.append(error)

    calls = (lambda: memory.kv_caches(1, 1, 1, 1, 1, torch.half).release(), memory.info,
             memory.stats, lambda: memory.budget.reclaim(1))  # fmt: skip
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not vendor.twice


class Engine:
    """Releases its caches when the collector ends it, in a cycle as engines are."""

    def __init__(self, memory):
        self.caches, self.me = memory.kv_caches(1, 1, 1, 1, 1, torch.half), self

    def __del__(self):
        self.caches.release()


@pytest.mark.parametrize("provided", [None, Plain()])
def test_engines_that_end_in_a_collection_release_what_they_hold(provided):
    memory = DeviceMemory(CPU, provided)
    memory.budget.hard_bytes = 1 << 20
    memory.budget.on_pressure(lambda _: None, at=0.0001)
    ended = []

    def work():
        threshold = gc.get_threshold()
        gc.set_threshold(1)  # a collection in every call, wherever it makes an object
        try:
            for _ in range(30):
                Engine(memory)
                memory.account(1, "step").release()
                memory.empty((1,))
        finally:
            gc.set_threshold(*threshold)
        ended.append(True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert ended  # one that waits for itself never ends
    gc.collect()
    assert memory.ledger.by_tag() == {}
    assert provided is None or not provided.out


EXITS = """
import torch, trivet.memory
from trivet.memory.tiers import DiskAllocator, SharedAllocator
from trivet.memory.buffers import Buffers
memory = trivet.memory.open(torch.device("cpu"))
class Engine:
    def __init__(self):
        self.caches = memory.kv_caches(1, 2, 1, 1, 1, torch.half)
        self.buffer = Buffers(DiskAllocator()).allocate(8)
        self.shared = Buffers(SharedAllocator()).allocate(8)
        self.me = self
    def __del__(self):
        self.caches.release()
        self.buffer.free()
        self.shared.free()
engine, token = Engine(), memory.account(5)
memory.sleeper.add({"w": (weight := torch.ones(9))})
memory.sleep(keep=["weights"])
"""


def test_an_interpreter_that_exits_says_nothing():
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", EXITS],
                          capture_output=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (0, "")
