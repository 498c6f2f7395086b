from __future__ import annotations

import gc
import threading

import pytest
import torch

from trivet.contracts.memory import Allocator, Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault, NotResident, OutOfMemory, PluginBroken
from trivet.memory.buffers import Buffers, Residency
from trivet.memory.torch_allocator import TorchAllocator

CPU = torch.device("cpu")


class Counted(TorchAllocator):
    """torch's allocator, and what of it is out."""

    def __init__(self, room=1 << 40, **traits):
        super().__init__(CPU)
        self.out, self.room = {}, room
        if traits:
            self._traits = Traits(CPU, Tier.HOST, **traits)

    def allocate(self, nbytes, *, tag):
        if nbytes > self.room:
            raise OutOfMemory("full", requested_bytes=nbytes, tag=tag)
        made = super().allocate(nbytes, tag=tag)
        self.out[id(made)] = made
        return made

    def deallocate(self, buffer):
        del self.out[id(buffer)]


@pytest.fixture
def heap():
    return Buffers(Counted())


def test_a_buffer_is_memory_with_a_tag_until_it_is_freed(heap):
    buffer = heap.allocate(100, tag="kv_cache")
    assert (buffer.nbytes, buffer.tag, buffer.residency) == (100, "kv_cache", Residency.RESIDENT)
    assert buffer.traits.tier is Tier.HOST
    part = buffer.tensor((2, 5), torch.float32, offset=16)
    part.fill_(1)
    assert buffer.raw[16:56].view(torch.float32).eq(1).all()
    assert list(heap) == [buffer]
    buffer.free()
    assert not heap.allocator.out
    assert list(heap) == []
    with pytest.raises(InvalidBuffer, match="was freed"):
        _ = buffer.raw
    with pytest.raises(InvalidBuffer, match="was freed before"):
        buffer.free()


@pytest.mark.parametrize(
    ("shape", "dtype", "offset", "why"),
    [((26,), torch.float32, 0, "ends at byte 104, the buffer has 100"),
     ((1,), torch.float32, 2, r"is not aligned\n  fix: .* a multiple of 4"),
     ((1,), torch.uint8, -1, "negative size or offset"),
     ((-1,), torch.uint8, 0, "negative size or offset")],
)  # fmt: skip
def test_a_part_must_lie_in_it(heap, shape, dtype, offset, why):
    with pytest.raises(InvalidBuffer, match=why):
        heap.allocate(100).tensor(shape, dtype, offset)


def test_one_that_is_suspended_is_not_used(heap):
    buffer = heap.allocate(8, tag="weights")
    buffer.residency = Residency.SUSPENDED
    with pytest.raises(NotResident, match=r"weights\) is suspended"):
        buffer.tensor((1,), torch.uint8)
    buffer.free()
    assert not heap.allocator.out


def test_another_allocators_buffer_is_refused(heap):
    other = Buffers(Counted()).allocate(4)
    with pytest.raises(InvalidBuffer, match="of another allocator"):
        heap.free(other)
    other.free()


def test_one_that_is_dropped_is_given_back_at_the_next_call_and_counted(heap):
    held = heap.allocate(4)
    heap.allocate(4)
    gc.collect()
    assert len(heap.allocator.out) == 2
    heap.settle()
    assert (len(heap.allocator.out), heap.leaked) == (1, 1)
    held.free()
    assert heap.leaked == 1


def test_a_failed_allocation_changes_nothing():
    heap = Buffers(Counted(room=10))
    with pytest.raises(OutOfMemory):
        heap.allocate(11)
    with pytest.raises(MemoryFault, match="-1 bytes"):
        heap.allocate(-1)
    assert not list(heap)


@pytest.mark.parametrize(
    "made",
    [None, torch.empty(4), torch.empty(9, dtype=torch.uint8),
     torch.zeros(64, dtype=torch.uint8)[1:5],
     torch.empty(8, dtype=torch.uint8)[::2]],
)  # fmt: skip
def test_what_is_no_buffer_is_refused_and_given_back(made):
    class Odd(Counted):
        def allocate(self, nbytes, *, tag):
            self.out[id(made)] = made
            return made

    heap = Buffers(Odd())
    with pytest.raises(PluginBroken, match="was asked for 4 bytes and returned"):
        heap.allocate(4)
    assert (not heap.allocator.out) is isinstance(made, torch.Tensor)


def test_an_alignment_below_the_least_is_refused():
    with pytest.raises(PluginBroken, match="aligns to 32 bytes"):
        Buffers(Counted(alignment=32))


def test_a_block_frees_its_buffer(heap):
    with heap.allocate(4) as buffer:
        assert list(heap) == [buffer]
    assert buffer.residency is Residency.FREED


def test_threads_share_one_heap(heap):
    assert isinstance(heap.allocator, Allocator)
    failures = []

    def work():
        try:
            for _ in range(300):
                heap.allocate(64).free()
                heap.allocate(64)  # left to the collector
        except BaseException as error:  # noqa: BLE001  # told by the test
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gc.collect()
    heap.settle()
    assert not failures
    assert not heap.allocator.out
    assert heap.leaked == 1200


def test_sizes_that_no_device_addresses_are_typed():
    with pytest.raises(OutOfMemory, match="no device can address"):
        Buffers(TorchAllocator(CPU)).allocate(1 << 64)
