"""Allocators that lie, and that are freed into at the wrong moment: one error, nothing lost."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from sleepers import CPU, Faults, Plain
from trivet.contracts.memory import Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory, PluginBroken
from trivet.memory.buffers import Buffers, Residency


class Liar(Plain):
    """Answers what it is told to, and does not take back what it is told not to."""

    def __init__(self):
        super().__init__()
        self.answer = self.refuses = None

    def allocate(self, nbytes, *, tag):
        if self.answer is None:
            return super().allocate(nbytes, tag=tag)
        return self.answer(nbytes)

    def deallocate(self, buffer):
        if self.refuses is not None:
            raise self.refuses
        self.out.pop(id(buffer), None)


ODD = {
    "too small": lambda n: torch.empty(n - 1, dtype=torch.uint8),
    "too large": lambda n: torch.empty(n + 1, dtype=torch.uint8),
    "no bytes": lambda n: torch.empty(n, dtype=torch.int8),
    "two dims": lambda n: torch.empty(1, n, dtype=torch.uint8),
    "strided": lambda n: torch.empty(2 * n, dtype=torch.uint8)[::2],
    "crooked": lambda n: torch.empty(n + 1, dtype=torch.uint8)[1:],
    "sparse": lambda n: torch.zeros(n, dtype=torch.uint8).to_sparse(),
    "elsewhere": lambda n: torch.empty(n, dtype=torch.uint8, device="meta"),
    "nothing": lambda _: None,
    "raises": lambda _: 1 / 0,
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_an_odd_answer_is_one_error_and_changes_nothing(answer):
    liar = Liar()
    heap = Buffers(liar)
    kept = heap.allocate(64)
    liar.answer, liar.refuses = answer, ValueError("not mine")
    with pytest.raises(PluginBroken, match="was asked for 128 bytes"):
        heap.allocate(128)  # what deallocate raises besides is a note
    assert list(heap) == [kept]
    liar.answer = liar.refuses = None
    heap.allocate(64).free()
    kept.free()


def test_memory_that_a_buffer_has_is_not_given_out_again():
    liar = Liar()
    heap = Buffers(liar)
    first = heap.allocate(64)
    first.raw.fill_(7)
    liar.answer = lambda _: first.raw
    with pytest.raises(PluginBroken, match=f"where buffer {first.generation} lies"):
        heap.allocate(64)
    liar.answer = lambda _: torch.frombuffer(memoryview(first.raw.numpy()), dtype=torch.uint8)
    with pytest.raises(PluginBroken, match=f"where buffer {first.generation} lies"):
        heap.allocate(64)
    assert first.raw.tolist() == [7] * 64
    first.free()
    liar.answer = None
    heap.allocate(64).free()  # the same address again, perhaps


@pytest.mark.parametrize(
    "said", [None, "traits", Traits(CPU, Tier.HOST, 48), Traits(CPU, Tier.HOST, 64.0)]
)
def test_odd_traits_are_refused(said):
    liar = Liar()
    liar.traits = lambda: said
    with pytest.raises(PluginBroken):
        Buffers(liar)


def test_what_runs_out_in_other_words_is_out_of_memory():
    def full(_):
        raise RuntimeError("driver: out of memory")

    liar = Liar()
    liar.answer = full
    with pytest.raises(OutOfMemory) as caught:
        Buffers(liar).allocate(64, tag="kv_cache")
    assert (caught.value.requested_bytes, caught.value.tag) == (64, "kv_cache")


@pytest.mark.parametrize("nbytes", [-1, 1.5, float("nan"), float("inf"), "8", None, [8]])
def test_a_size_that_is_none_is_refused(nbytes):
    heap = Buffers(Plain())
    with pytest.raises(MemoryFault, match="cannot be made"):
        heap.allocate(nbytes)
    assert not list(heap)


@pytest.mark.parametrize("tag", [None, 3, b"weights", ["weights"]])
def test_a_tag_that_is_none_is_refused(tag):
    with pytest.raises(MemoryFault, match="a tag is text"):
        Buffers(Plain()).allocate(8, tag=tag)


@pytest.mark.parametrize(("shape", "dtype", "offset"), [
    ((-2, -4), torch.uint8, 0), ((1.5,), torch.uint8, 0), ((float("nan"),), torch.uint8, 0),
    (8, torch.uint8, 0), ("8", torch.uint8, 0), ((8,), "uint8", 0), ((8,), None, 0),
    ((8,), torch.uint8, -1), ((8,), torch.uint8, 0.0), ((1 << 70,), torch.uint8, 0),
])  # fmt: skip
def test_a_part_that_is_none_is_refused(shape, dtype, offset):
    buffer = Buffers(Plain()).allocate(64)
    with pytest.raises(InvalidBuffer, match=r"is no part|negative size|ends at byte"):
        buffer.tensor(shape, dtype, offset)


def test_a_buffer_that_is_not_taken_back_stays_as_it_was():
    liar = Liar()
    heap = Buffers(liar)
    buffer = heap.allocate(64)
    liar.refuses = ValueError("busy")
    with pytest.raises(PluginBroken, match="does not take 64 bytes back: ValueError: busy"):
        buffer.free()
    assert (list(heap), buffer.residency) == ([buffer], Residency.RESIDENT)
    buffer.raw.fill_(1)
    liar.refuses = None
    buffer.free()
    assert not liar.out
    with pytest.raises(InvalidBuffer, match="was freed before"):
        buffer.free()


def test_the_copy_of_a_sleeper_that_is_not_taken_back_stays():
    liar, host = Liar(), Plain()
    heap, copies = Buffers(liar), Buffers(host)
    liar.preserves = frozenset({"address"})
    liar.suspend = liar.resume = lambda _: None
    buffer = heap.allocate(64)
    heap.suspend(buffer)
    buffer.absence.kept = copies.allocate(64)
    liar.refuses = ValueError("busy")
    with pytest.raises(PluginBroken):
        buffer.free()
    assert len(host.out) == 1
    assert buffer.residency is Residency.SUSPENDED
    liar.refuses = None
    buffer.free()
    assert not host.out
    assert not liar.out


def test_a_dropped_buffer_that_is_not_taken_back_fails_nobody_elses_call(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    liar = Liar()
    heap = Buffers(liar)
    heap.allocate(64)
    gc.collect()
    liar.refuses = ValueError("busy")
    heap.allocate(8)
    assert [str(one.exc_value).partition("\n")[0] for one in told] == [
        "the allocator Liar does not take 64 bytes back: ValueError: busy"
    ]
    assert heap.leaked == 1


class OneAtATime(Plain):
    """Ends an owner inside of its calls, as a collection may, and refuses to be called there."""

    def __init__(self):
        super().__init__()
        self.inside, self.ends = False, []

    def _alone(self):
        assert not self.inside, "two calls at a time"
        self.inside = True
        while self.ends:
            self.ends.pop()()
        self.inside = False

    def allocate(self, nbytes, *, tag):
        self._alone()
        return super().allocate(nbytes, tag=tag)

    def deallocate(self, buffer):
        self._alone()
        super().deallocate(buffer)


def test_what_a_finaliser_frees_within_a_call_goes_back_after_it():
    allocator = OneAtATime()
    heap = Buffers(allocator)
    first, second, third = (heap.allocate(64) for _ in range(3))
    allocator.ends = [first.free]
    heap.allocate(8).free()
    allocator.ends = [second.free]
    third.free()
    assert [b.residency for b in (first, second, third)] == [Residency.FREED] * 3
    assert not allocator.out
    with pytest.raises(InvalidBuffer):
        first.free()


def test_threads_free_while_others_allocate():
    allocator = OneAtATime()
    heap = Buffers(allocator)
    failures = []

    def work():
        try:
            for _ in range(200):
                kept = heap.allocate(64)
                allocator.ends.append(heap.allocate(64).free)
                kept.free()
        except BaseException as error:  # noqa: BLE001  # shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heap.allocate(1).free()
    heap.settle()
    assert not failures
    assert not allocator.out


def test_a_vendor_is_trimmed_and_asked_in_turn():
    class Vendor(OneAtATime):
        def trim(self, nbytes):
            self._alone()
            return nbytes

    heap = Buffers(Vendor())
    assert heap.trim(5) == 5
    assert Buffers(Plain()).trim(5) == 0
    buffer = heap.allocate(8)
    with heap.in_turn():
        buffer.free()
        assert len(heap.allocator.out) == 1
    assert not heap.allocator.out


def test_a_heap_ends_without_a_collection():
    heap = Buffers(Plain(Faults()))
    end = weakref.ref(heap)
    heap.allocate(8).free()
    gc.disable()
    try:
        del heap
        assert end() is None
    finally:
        gc.enable()
