from __future__ import annotations

import gc
import json
import math

import pytest
import torch

import trivet.memory
from trivet.contracts.memory import MemoryInfo, Stats, Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory, PluginBroken
from trivet.memory import DeviceMemory, Ledger

CPU = torch.device("cpu")
OTHER = torch.device("privateuseone", 0)  # a device type that torch leaves to third parties


class Buffers:
    """An allocator with room for so many buffers; remembers what it gave."""

    def __init__(self, room=100, make=lambda n: torch.full((n,), 255, dtype=torch.uint8)):
        self.room, self.make, self.given, self.tags = room, make, {}, []

    def traits(self):
        return Traits(CPU, Tier.HOST)

    def allocate(self, nbytes, *, tag):
        if len(self.given) == self.room:
            raise torch.OutOfMemoryError("full")
        buffer = self.make(nbytes)
        self.given[id(buffer)] = buffer
        self.tags.append(tag)
        return buffer

    def deallocate(self, buffer):
        del self.given[id(buffer)]


def test_a_tensor_is_accounted_while_any_view_of_it_lives():
    memory = trivet.memory.open(CPU)
    tensor = memory.empty((3, 5), torch.bfloat16, tag="scratch")
    assert (tensor.shape, tensor.dtype, tensor.device) == ((3, 5), torch.bfloat16, CPU)
    assert memory.ledger.by_tag() == {"scratch": 30}
    row = tensor[0]
    del tensor
    gc.collect()
    assert memory.ledger.used_bytes == 30
    del row
    gc.collect()
    assert memory.ledger.used_bytes == 0
    assert memory.stats().max_accounted_bytes == 30


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_scalars_and_empty_tensors_are_tensors(shape):
    memory = trivet.memory.open(CPU)
    tensor = memory.empty(shape, torch.float64)
    assert tensor.shape == shape
    assert memory.ledger.used_bytes == tensor.nbytes


def test_the_ledgers_limit_holds_and_a_refusal_changes_nothing():
    memory = DeviceMemory(CPU, ledger=Ledger(limit_bytes=100))
    held = memory.empty((20,), torch.float32, tag="a")
    with pytest.raises(OutOfMemory) as caught:
        memory.empty((6,), torch.float32, tag="b")
    error = caught.value
    assert (error.requested_bytes, error.free_bytes, error.limit_bytes) == (24, 20, 100)
    assert error.tag == "b"
    assert memory.ledger.by_tag() == {"a": held.nbytes}


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 60,), (1 << 40, 1 << 40)])
def test_a_real_allocation_that_cannot_be_is_typed(shape):
    memory = trivet.memory.open(CPU)
    with pytest.raises(OutOfMemory) as caught:
        memory.empty(shape, torch.float32, tag="absurd")
    error = caught.value
    assert error.requested_bytes == math.prod(shape) * 4
    assert error.tag == "absurd"
    assert not error.retryable
    assert isinstance(error, torch.OutOfMemoryError)
    assert memory.ledger.used_bytes == 0


def test_an_accelerators_exhaustion_is_typed_and_carries_what_is_free(monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(torch, "empty", full)

    class Source:
        def info(self):
            return MemoryInfo(total_bytes=64, free_bytes=40)

    memory = trivet.memory.open(CPU, Source())
    with pytest.raises(OutOfMemory) as caught:
        memory.empty((8,), torch.float32)
    assert caught.value.free_bytes == 40
    assert caught.value.retryable
    assert memory.ledger.used_bytes == 0


def test_other_errors_of_torch_pass_unchanged(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("something else")

    monkeypatch.setattr(torch, "empty", broken)
    memory = trivet.memory.open(CPU)
    with pytest.raises(RuntimeError, match="something else") as caught:
        memory.empty((8,), torch.float32)
    assert not isinstance(caught.value, OutOfMemory)
    assert memory.ledger.used_bytes == 0


def test_a_negative_size_is_refused():
    with pytest.raises(MemoryFault):
        trivet.memory.open(CPU).empty((2, -1), torch.float32)


def test_the_host_knows_its_memory():
    info = trivet.memory.open(CPU).info()
    assert 0 < info.free_bytes <= info.total_bytes
    assert json.loads(json.dumps(info.to_json()))["total_bytes"] == info.total_bytes


def test_an_absent_accelerator_is_unknown_with_a_reason():
    memory = trivet.memory.open(OTHER)
    info = memory.info()
    assert (info.total_bytes, info.free_bytes) == (None, None)
    assert "unknown" in info.source
    assert memory.stats() == Stats()


def test_an_accelerator_is_read_through_torch(monkeypatch):
    read = {"allocated_bytes.all.current": 5, "allocated_bytes.all.peak": 7}
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: OTHER)
    monkeypatch.setattr(
        torch.accelerator, "get_memory_info", lambda device: (30, 90), raising=False
    )
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: read)
    memory = trivet.memory.open(OTHER)
    info, stats = memory.info(), memory.stats()
    assert (info.free_bytes, info.total_bytes) == (30, 90)
    assert (stats.allocated_bytes, stats.max_allocated_bytes) == (5, 7)
    assert (stats.reserved_bytes, stats.max_reserved_bytes) == (None, None)


def test_an_accelerator_that_cannot_say_is_unknown(monkeypatch):
    def refuse(device):
        raise RuntimeError("not supported\nmore")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: OTHER)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", refuse, raising=False)
    monkeypatch.setattr(torch.accelerator, "memory_stats", refuse)
    memory = trivet.memory.open(OTHER)
    assert memory.info() == MemoryInfo(source="unknown: not supported")
    assert memory.stats().allocated_bytes is None


def test_stats_are_plain_values_with_tags_in_order():
    memory = trivet.memory.open(CPU)
    with memory.account(5, "b"), memory.account(7, "a"):
        plain = memory.stats().to_json()
    assert json.loads(json.dumps(plain)) == {
        "allocated_bytes": None,
        "reserved_bytes": None,
        "max_allocated_bytes": None,
        "max_reserved_bytes": None,
        "accounted_bytes": 12,
        "max_accounted_bytes": 12,
        "by_tag": {"a": 7, "b": 5},
    }
    assert list(plain["by_tag"]) == ["a", "b"]


def test_a_vendor_may_bring_only_statistics():
    class Source:
        def stats(self):
            return Stats(allocated_bytes=3)

    memory = trivet.memory.open(CPU, Source())
    memory.account(9, "x")
    stats = memory.stats()
    assert (stats.allocated_bytes, stats.accounted_bytes) == (3, 9)
    assert memory.info().total_bytes > 0


def test_a_vendor_that_brings_nothing_known_is_named():
    with pytest.raises(PluginBroken, match="is none of: Allocator, Trimmer, Reclaimer"):
        trivet.memory.open(CPU, object())


def test_kv_caches_are_separate_zeroed_base_tensors():
    memory = trivet.memory.open(CPU)
    caches = memory.kv_caches(3, 4, 2, 5, 8, torch.bfloat16)
    assert len(caches) == 3
    tensors = [tensor for layer in caches for tensor in layer]
    assert {t.shape for t in tensors} == {(4, 2, 5, 8)}
    assert {t.dtype for t in tensors} == {torch.bfloat16}
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == 6
    assert all(t._base is None and t.storage_offset() == 0 and not t.any() for t in tensors)
    assert caches.nbytes == 6 * 4 * 2 * 5 * 8 * 2 == memory.ledger.by_tag()["kv_cache"]
    del tensors
    caches.release()
    caches.release()
    gc.collect()
    assert memory.ledger.used_bytes == 0
    with pytest.raises(InvalidBuffer):
        caches[0]


def test_kv_caches_that_do_not_all_fit_leave_nothing_behind():
    memory = DeviceMemory(CPU, ledger=Ledger(limit_bytes=5 * 32 * 4))
    with pytest.raises(OutOfMemory) as caught:
        memory.kv_caches(3, 2, 2, 2, 4, torch.float32, tag="kv")
    assert caught.value.tag == "kv"  # held here, traceback and all
    assert memory.ledger.used_bytes == 0


def test_a_vendors_allocator_serves_the_caches_and_nothing_else():
    allocator = Buffers()
    memory = trivet.memory.open(CPU, allocator)
    memory.empty((4,), torch.float32)
    assert not allocator.given
    with memory.kv_caches(2, 4, 2, 1, 8, torch.float32, tag="kv") as caches:
        k, v = caches[1]
        assert k.shape == v.shape == (4, 2, 1, 8)
        assert not k.any()
        assert allocator.tags == ["kv"] * 4
        assert memory.ledger.by_tag()["kv"] == caches.nbytes
    assert not allocator.given
    assert "kv" not in memory.ledger.by_tag()


def test_a_vendors_exhaustion_gives_back_what_was_made_before():
    allocator = Buffers(room=3)
    memory = trivet.memory.open(CPU, allocator)
    with pytest.raises(OutOfMemory) as caught:
        memory.kv_caches(2, 4, 2, 1, 8, torch.float32)
    assert caught.value.requested_bytes == 256
    assert not allocator.given
    assert memory.ledger.used_bytes == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.zeros(n - 1, dtype=torch.uint8),
        lambda n: torch.zeros(n, dtype=torch.int8),
        lambda n: torch.zeros(2 * n, dtype=torch.uint8)[::2],
        lambda n: torch.zeros(n + 4, dtype=torch.uint8)[4:],
        lambda n: torch.zeros(n, dtype=torch.uint8, device="meta"),
    ],
    ids=["short", "dtype", "strided", "unaligned", "device"],
)
def test_a_buffer_that_is_none_names_the_allocator(make):
    allocator = Buffers(make=make)
    memory = trivet.memory.open(CPU, allocator)
    with pytest.raises(PluginBroken, match="Buffers"):
        memory.kv_caches(1, 4, 2, 1, 8, torch.float32)
    assert not allocator.given
    assert memory.ledger.used_bytes == 0


def test_block_pools_are_made_for_the_device():
    pool = trivet.memory.open(CPU).kv_blocks(3, 16, bytes_per_block=10)
    assert (pool.num_blocks, pool.block_size, pool.bytes_per_block) == (3, 16, 10)


@pytest.mark.parametrize("provided", [None, Buffers(room=3)], ids=["torch", "vendor"])
def test_the_peak_has_nothing_of_what_was_refused(provided):
    limit = None if provided else 5 * 256
    memory = DeviceMemory(CPU, provided, Ledger(limit_bytes=limit))
    held = memory.empty((8,), torch.float32)
    with pytest.raises(OutOfMemory):
        memory.kv_caches(2, 4, 2, 1, 8, torch.float32 if provided else torch.float64)
    gc.collect()
    stats = memory.stats()
    assert (stats.accounted_bytes, stats.max_accounted_bytes) == (held.nbytes, held.nbytes)
    with memory.kv_caches(1, 2, 2, 1, 8, torch.float32) as caches:
        assert memory.stats().max_accounted_bytes == held.nbytes + caches.nbytes


def test_the_peak_has_nothing_of_an_allocation_that_failed():
    memory = DeviceMemory(CPU)
    with pytest.raises(OutOfMemory):
        memory.empty((1 << 60,), torch.float32)
    assert memory.stats().max_accounted_bytes == 0


def test_the_allocator_is_the_vendors_or_torchs_on_this_device():
    vendors = Buffers()
    assert DeviceMemory(CPU, vendors).allocator is vendors
    torchs = DeviceMemory(CPU).allocator
    assert torchs.traits().device == CPU
    assert torchs.allocate(10, tag="t").numel() == 10


def test_what_lacks_a_function_or_is_a_class_is_named():
    class Nearly:
        traits, allocate = Buffers.traits, Buffers.allocate

    for odd, why in ((Nearly(), r"it lacks deallocate\(\)"), (Buffers, "is a class; make one")):
        with pytest.raises(PluginBroken, match=why):
            DeviceMemory(CPU, odd)


def test_a_dtype_by_its_name_is_refused_in_words():
    with pytest.raises(MemoryFault, match=r"'float32' is no torch\.dtype"):
        DeviceMemory(CPU).kv_caches(1, 1, 16, 1, 8, "float32")


def test_a_trait_that_there_is_not_is_no_trait_that_is_lacked():
    with pytest.raises(MemoryFault, match="'aligment' is no trait"):
        Traits(CPU, Tier.HOST).lacks({"aligment": 128})
