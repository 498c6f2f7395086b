"""Sleep and wake as an engine uses them, and the reclaimer of torch's memory."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

import trivet.memory
from sleepers import CPU, Address, Faults, FaultyMover, Host, Plain
from trivet.contracts.memory import Reclaimer
from trivet.errors import (
    InvalidBuffer,
    MemoryFault,
    NotResident,
    OutOfMemory,
    PartialReclaim,
)
from trivet.memory.adaptors import Aligned
from trivet.memory.buffers import Buffers, Residency
from trivet.memory.kv.keys import keys_of
from trivet.memory.sleep import Sleep
from trivet.memory.tiers import HostAllocator
from trivet.memory.torch_allocator import TorchAllocator


def kv_caches(memory, **kwargs):
    return memory.kv_caches(2, 4, 2, 1, 8, torch.float32, **kwargs)


# --- buffers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Plain, Address, lambda: TorchAllocator(CPU), HostAllocator])
def test_a_buffer_of_any_allocator_is_suspended_and_resumed(make):
    heap = Buffers(make())
    buffer = heap.allocate(100, tag="kv_cache")
    address = buffer.raw.data_ptr()
    heap.suspend(buffer)
    heap.suspend(buffer)
    with pytest.raises(NotResident):
        _ = buffer.raw
    with pytest.raises(NotResident, match="has no memory"):
        heap.mark(buffer, Residency.RESIDENT)
    memory = heap.resume(buffer)
    assert memory.shape == (100,)
    if "address" in heap.preserves:
        assert memory.data_ptr() == address
    with pytest.raises(NotResident):
        _ = buffer.raw  # it has memory, but not its contents
    heap.mark(buffer, Residency.RESIDENT)
    assert buffer.raw is memory
    heap.suspend(buffer)
    buffer.free()
    for call in (heap.suspend, heap.resume):
        with pytest.raises(InvalidBuffer, match="no live buffer"):
            call(buffer)
    assert not getattr(heap.allocator, "out", None)


def test_views_of_torchs_memory_outlast_its_suspension():
    allocator = TorchAllocator(CPU)
    assert isinstance(allocator, Reclaimer)
    raw = allocator.allocate(1 << 20, tag="")
    view = raw[256:512].view(torch.int32)
    allocator.suspend(raw)
    assert raw.untyped_storage().nbytes() == 0
    allocator.resume(raw)
    raw.fill_(1)
    assert view.eq(0x01010101).all()
    with pytest.raises(MemoryFault, match="not torch's alone"):
        allocator.suspend(HostAllocator().allocate(10, tag=""))


def test_an_aligned_part_of_a_piece_that_moves_is_allocated_anew():
    heap = Buffers(Aligned(TorchAllocator(CPU), 1 << 20))
    buffers = [heap.allocate(1000) for _ in range(8)]
    assert heap.preserves == frozenset()
    for buffer in buffers:
        heap.suspend(buffer)
    assert all(heap.resume(b).data_ptr() % (1 << 20) == 0 for b in buffers)
    assert Buffers(Aligned(Address(), 4096)).preserves == {"address", "graphs"}


def test_a_suspended_buffer_takes_its_host_copy_with_it():
    heap, host = Buffers(Plain()), Buffers(Host())
    sleep = Sleep(CPU, host=host)
    sleep.watch(heap)
    freed, dropped = heap.allocate(10, tag="kv_cache"), heap.allocate(10, tag="kv_cache")
    assert sleep.sleep(keep=["kv_cache"]) == 20
    assert (len(heap.allocator.out), len(host.allocator.out)) == (0, 2)
    freed.free()
    assert len(host.allocator.out) == 1
    del dropped
    gc.collect()
    host.settle()
    heap.settle()
    assert not host.allocator.out
    assert heap.leaked == 1


# --- an engine ---------------------------------------------------------------------------------


def test_weights_are_kept_and_the_cache_is_discarded_with_its_pool():
    memory = trivet.memory.open(CPU)
    model = torch.nn.Linear(64, 64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    caches, pool = kv_caches(memory), memory.kv_blocks(4, 2)
    memory.sleeper.add(dict(model.named_parameters()))
    memory.sleeper.contents(pool)
    keys, (block,) = keys_of([1, 2], 2), pool.allocate(1)
    k, _ = caches[0]
    k.fill_(3)
    pool.publish(block, keys[0])
    weights = 64 * 65 * 4
    accounted = memory.ledger.used_bytes
    assert memory.sleep(keep="weights", discard=["kv_cache"]) == weights + caches.nbytes
    assert memory.sleep(keep="weights", discard=["kv_cache"]) == 0
    assert memory.ledger.used_bytes == accounted
    assert set(memory.sleeper.states().values()) == {"kept", "discarded"}
    assert pool.find(keys) == []
    for use in (lambda: caches[1], lambda: list(caches)):
        with pytest.raises(NotResident, match="sleep"):
            use()
    assert model.weight.untyped_storage().nbytes() == 0
    assert memory.wake(["weights"]) == weights
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert memory.wake() == caches.nbytes
    assert memory.wake() == 0
    assert caches[0][0] is k
    assert not k.any()
    assert memory.sleeper.preserves("weights") == {"tensors"}
    caches.release()


def test_caches_of_a_vendor_that_moves_them_get_new_tensors():
    vendor = Plain()
    memory = trivet.memory.open(CPU, vendor)
    caches, other = kv_caches(memory), kv_caches(memory, tag="draft")
    told = []
    memory.sleeper.on("kv_cache", rebind=lambda piece: told.append(piece.buffer.generation))
    for i, layer in enumerate(caches):
        for j, tensor in enumerate(layer):
            tensor.fill_(10 * i + j)
    old = caches[0][0]
    memory.sleep(keep=["kv_cache"])
    assert len(vendor.out) == 4  # of the other
    with pytest.raises(NotResident):
        _ = caches[0]
    assert other[0][0].shape == (4, 2, 1, 8)
    memory.wake()
    assert len(told) == 4
    assert caches[0][0] is not old
    assert [int(t.mean()) for layer in caches for t in layer] == [0, 1, 10, 11]
    assert memory.sleeper.preserves("kv_cache") == frozenset()
    memory.sleep(discard=["kv_cache", "draft"])
    caches.release()  # legal while it sleeps
    memory.wake()
    assert len(vendor.out) == 4
    other.release()
    assert not vendor.out
    assert memory.ledger.used_bytes == 0


def test_caches_of_a_vendor_that_are_dropped_leave_their_tensors_valid():
    vendor = Plain()
    memory = trivet.memory.open(CPU, vendor)
    k = kv_caches(memory)[0][0]
    gc.collect()
    kv_caches(memory).release()
    assert len(vendor.out) == 4
    assert not k.any()


def test_a_vendor_that_keeps_addresses_tells_nobody():
    memory = trivet.memory.open(CPU, Address())
    caches, told = kv_caches(memory), []
    memory.sleeper.on("kv_cache", rebind=told.append)
    k = caches[1][0]
    k.fill_(7)
    memory.sleep(keep=["kv_cache"])
    memory.wake()
    assert caches[1][0] is k
    assert k.eq(7).all()
    assert told == []
    assert memory.sleeper.preserves("kv_cache") == {"address", "graphs"}


def test_discarded_weights_are_loaded_again_by_their_names():
    sleep, weight = Sleep(CPU), torch.ones(4)
    head = weight[1:]
    sleep.add({"w": weight, "tied": weight, "head": head, "ended": weight[2:]})
    with pytest.raises(PartialReclaim, match=r"again; on\('weights', reload=") as caught:
        sleep.sleep(discard=["weights"])
    assert (caught.value.done, [*caught.value.failed]) == ((), ["weights/w"])
    assert weight.eq(1).all()

    def reload(piece):
        assert set(piece.tensors) == {"w", "tied", "head"}
        piece.tensors["w"].fill_(2)

    sleep.on("weights", reload=reload)
    assert sleep.sleep(discard=["weights"]) == 16
    assert sleep.wake() == 16
    assert weight.eq(2).all()


def test_what_is_no_mapping_or_no_pool_is_refused_at_once():
    sleep = Sleep(CPU)
    with pytest.raises(MemoryFault, match="Linear is no mapping"):
        sleep.add(torch.nn.Linear(2, 2))
    with pytest.raises(MemoryFault, match="Linear is no pool"):
        sleep.contents(torch.nn.Linear(2, 2))
    assert sleep.states() == {}


def test_what_was_kept_can_still_be_discarded():
    sleep, host = Sleep(CPU, host=Buffers(Host())), None
    host = sleep._host
    tensor = torch.ones(100)
    sleep.add({"scratch": tensor}, tag="workspace")
    sleep.sleep(keep=["workspace"])
    assert len(host.allocator.out) == 1
    sleep.sleep(discard=["workspace"])
    assert not host.allocator.out
    sleep.wake()
    assert not tensor.any()


def test_graphs_are_dropped_first_and_made_last():
    sleep, calls = Sleep(CPU), []
    tensor = torch.ones(4)
    sleep.add({"w": tensor}, tag="weights")
    sleep.on("weights", rebind=lambda piece: calls.append("rebind"))

    def drop():
        calls.append(f"drop at {tensor.untyped_storage().nbytes()}")

    sleep.made("decode", drop=drop, rebuild=lambda: calls.append(f"rebuild {int(tensor.sum())}"))
    sleep.sleep(keep=["weights", "graph"])
    assert calls == []
    sleep.wake()
    sleep.sleep(keep=["weights"], discard=["graph"])
    assert sleep.states() == {"weights/w": "kept", "graph/decode": "discarded"}
    sleep.wake()
    assert [c for c in calls if c != "rebind"] == ["drop at 16", "rebuild 4"]


def test_tensors_that_end_while_they_sleep_give_their_copy_back():
    host = Buffers(Host())
    sleep, tensor = Sleep(CPU, host=host), torch.ones(100)
    sleep.add({"w": tensor})
    sleep.sleep(keep=["weights"])
    ended = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert ended() is None
    assert sleep.states() == {}
    assert not host.allocator.out
    assert sleep.wake() == 0


def test_what_cannot_be_done_is_refused_before_anything_is():
    sleep = Sleep(CPU)
    tensor = torch.ones(4)
    sleep.add({"w": tensor})
    for kwargs in ({}, {"keep": ["weights"], "discard": ["weights"]}, {"keep": ["wieghts"]}):
        with pytest.raises(MemoryFault):
            sleep.sleep(**kwargs)
    with pytest.raises(MemoryFault, match=r"tag 'all'\n  fix: tags here: graph, kv_cache"):
        sleep.wake("all")
    mapped, again = HostAllocator().allocate(8, tag=""), torch.ones(1)
    sleep.add({"mapped": mapped})
    sleep.add({"w": again})
    with pytest.raises(PartialReclaim, match="weights/mapped: the memory of 8 bytes on cpu is not"):
        sleep.sleep(keep=["weights"])
    states = {"weights/w": "kept", "weights/w#2": "kept", "weights/mapped": "awake"}
    assert sleep.states() == states
    sleep.wake()


def test_an_owners_function_cannot_start_another_call():
    sleep = Sleep(CPU)
    sleep.made("decode", drop=sleep.wake, rebuild=lambda: None)
    with pytest.raises(PartialReclaim, match="another sleep or wake is under way"):
        sleep.sleep(discard=["graph"])
    assert sleep.states() == {"graph/decode": "awake"}


def test_no_room_on_the_host_leaves_it_awake_and_names_it():
    class Full(Host):
        def allocate(self, nbytes, *, tag):
            raise OutOfMemory("the host is full", requested_bytes=nbytes, tag=tag)

    sleep, tensors = Sleep(CPU, host=Buffers(Full())), [torch.ones(4), torch.ones(4)]
    sleep.add({"w": tensors[0]})
    sleep.add({"s": tensors[1]}, tag="workspace")
    with pytest.raises(PartialReclaim, match="the host is full") as caught:
        sleep.sleep(keep=["weights"], discard=["workspace"])
    assert caught.value.done == ("workspace/s",)
    assert isinstance(caught.value.__cause__, OutOfMemory)
    assert sleep.states() == {"weights/w": "awake", "workspace/s": "discarded"}
    sleep.wake()


def test_an_error_that_was_handled_keeps_no_buffer_alive():
    faults = Faults()
    heap = Buffers(Plain())
    sleep = Sleep(CPU, mover=FaultyMover(faults))
    sleep.watch(heap)
    held = [heap.allocate(10, tag="kv_cache") for _ in range(2)]
    faults.arm(1)
    gc.disable()
    try:
        with contextlib.suppress(PartialReclaim):
            sleep.sleep(keep=["kv_cache"])
        held.clear()
        assert not list(heap)
    finally:
        gc.enable()
    assert not heap.allocator.out


def test_memory_that_cannot_be_given_back_is_used_by_the_next_attempt():
    class Stuck(Address):
        stuck = False

        def suspend(self, buffer):
            if self.stuck:
                raise MemoryFault("stuck")
            super().suspend(buffer)

    faults = Faults()
    heap = Buffers(Stuck())
    sleep = Sleep(CPU, mover=FaultyMover(faults))
    sleep.watch(heap)
    buffer = heap.allocate(10, tag="kv_cache")
    buffer.raw.fill_(5)
    sleep.sleep(keep=["kv_cache"])
    heap.allocator.stuck = True
    faults.arm(2)
    with pytest.raises(PartialReclaim) as caught:
        sleep.wake()
    assert "could not be given back either" in caught.value.__cause__.__notes__[0]
    assert sleep.states() == {f"kv_cache/{buffer.generation}": "kept"}
    faults.disarm()
    sleep.wake()
    assert buffer.raw.eq(5).all()


def test_a_pool_that_caches_is_asked_to_give_its_memory_back():
    class Caching(Plain):
        asked = None

        def trim(self, nbytes):
            self.asked = nbytes
            raise ValueError("it cannot")

    heap = Buffers(Caching())
    sleep = Sleep(CPU)
    sleep.watch(heap)
    held = heap.allocate(10, tag="kv_cache")
    with pytest.raises(PartialReclaim, match="cached memory: ValueError: it cannot"):
        sleep.sleep(discard=["kv_cache"])
    assert heap.allocator.asked == 0
    assert held.residency is Residency.SUSPENDED


def test_an_accelerator_is_waited_for_and_its_cache_emptied(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda d: calls.append(f"wait {d}"))
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: calls.append("empty"))
    Sleep(torch.device("meta")).sleep(discard=["kv_cache"])
    assert calls == ["wait meta", "empty"]
