from __future__ import annotations

import threading

import pytest

from allocators import Strict
from trivet.contracts.memory import Reclaimer, Trimmer
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory import Ledger
from trivet.memory.adaptors import Faulty, Instrumented, ThreadSafe
from trivet.memory.buffers import Buffers
from trivet.memory.pools import BestFit, Binned
from trivet.memory.tiers import HostAllocator


def test_the_hard_limit_refuses_before_the_upstream_is_asked():
    below = Strict()
    made = Instrumented(below, limit_bytes=100)
    held = made.allocate(60, tag="kv")
    calls = below.calls
    with pytest.raises(OutOfMemory) as caught:
        made.allocate(41, tag="kv")
    error = caught.value
    assert (error.requested_bytes, error.free_bytes, error.limit_bytes) == (41, 40, 100)
    assert error.retryable
    assert (error.tag, below.calls) == ("kv", calls)
    with pytest.raises(OutOfMemory) as caught:
        made.allocate(101, tag="kv")
    assert not caught.value.retryable
    made.limit_bytes = 101
    made.deallocate(made.allocate(41, tag="kv"))
    made.deallocate(held)


def test_the_soft_limit_calls_once_a_crossing():
    seen = []
    made = Instrumented(Strict(), soft_limit_bytes=100, on_soft_limit=lambda *a: seen.append(a))
    first = made.allocate(100, tag="t")
    assert not seen
    second, third = made.allocate(1, tag="t"), made.allocate(1, tag="t")
    assert seen == [(101, 100)]
    for buffer in (second, third):
        made.deallocate(buffer)
    made.deallocate(made.allocate(50, tag="t"))
    made.deallocate(first)
    assert seen == [(101, 100), (150, 100)]


def test_counts_are_by_tag_and_by_scope():
    made = Instrumented(Strict())
    outer = made.allocate(100, tag="weights")
    with made.scope() as found:
        inner = made.allocate(30, tag="kv")
        made.deallocate(outer)
        with made.scope() as nested:
            made.deallocate(made.allocate(500, tag="kv"))
    (counts,), (deep,) = found, nested
    assert (counts.current_bytes, counts.peak_bytes, counts.total_bytes) == (-70, 430, 530)
    assert (counts.allocations, counts.deallocations) == (2, 2)
    assert (deep.current_bytes, deep.peak_bytes) == (0, 500)
    counts = made.counts()
    assert (counts.current_bytes, counts.peak_bytes, counts.total_bytes) == (30, 530, 630)
    assert counts.by_tag == {"weights": (0, 100, 1), "kv": (30, 530, 2)}
    assert counts.to_json()["by_tag"] == {"kv": [30, 530, 2], "weights": [0, 100, 1]}
    stats = made.stats()
    assert (stats.accounted_bytes, stats.max_accounted_bytes) == (30, 530)
    assert stats.by_tag == {"kv": 30}
    made.deallocate(inner)
    with pytest.raises(MemoryFault, match="no scope"):
        made.pop()


def test_what_is_outstanding_has_its_stack_where_it_is_kept():
    plain, kept = Instrumented(Strict()), Instrumented(Strict(), stacks=True)
    held = [(made, made.allocate(7, tag="kv")) for made in (plain, kept)]
    (one,), (two,) = plain.outstanding(), kept.outstanding()
    assert (one.number, one.nbytes, one.tag, one.stack) == (1, 7, "kv", None)
    assert str(one) == "buffer 1: 7 bytes, kv"
    assert "test_what_is_outstanding_has_its_stack" in str(two)
    for made, buffer in held:
        made.deallocate(buffer)
    assert plain.outstanding() == []


def test_a_failure_callback_may_free_and_is_called_without_a_lock():
    below = Strict(room=100)
    asked = []

    def free(nbytes, tag):
        asked.append((nbytes, tag))
        worker = threading.Thread(target=lambda: made.deallocate(held.pop()))
        worker.start()
        worker.join(10)  # it would wait for ever for a lock that this thread holds
        return not worker.is_alive()

    made = Instrumented(below, on_failure=free)
    held = [made.allocate(80, tag="old")]
    buffer = made.allocate(50, tag="new")
    assert asked == [(50, "new")]
    assert (made.used_bytes, made.counts().failures) == (50, 0)
    made.deallocate(buffer)


@pytest.mark.parametrize("limit", [None, 10])
def test_retries_are_bounded_and_a_refusal_raises_at_once(limit):
    asked = []
    made = Instrumented(
        Strict(room=10), limit_bytes=limit, retries=3, on_failure=lambda *a: asked.append(a) or True
    )
    with pytest.raises(OutOfMemory):
        made.allocate(11, tag="t")
    assert len(asked) == 3
    made = Instrumented(Strict(room=10), on_failure=lambda *a: asked.append(a) or False)
    with pytest.raises(OutOfMemory):
        made.allocate(11, tag="t")
    assert len(asked) == 4
    assert made.counts().failures == 1


def test_a_failure_inside_the_callback_is_not_handed_to_it():
    depth = []

    def greedy(nbytes, tag):
        depth.append(nbytes)
        with pytest.raises(OutOfMemory):
            made.allocate(12, tag=tag)
        return False

    made = Instrumented(Strict(room=10), on_failure=greedy)
    with pytest.raises(OutOfMemory):
        made.allocate(11, tag="t")
    assert depth == [11]


def test_what_the_callback_raises_reaches_the_caller():
    def fail(nbytes, tag):
        raise KeyError(tag)

    made = Instrumented(Strict(room=10), on_failure=fail)
    with pytest.raises(KeyError):
        made.allocate(11, tag="t")
    made.deallocate(made.allocate(10, tag="t"))


def test_events_come_after_the_change_without_a_lock():
    seen = []

    def note(event):
        assert not made._lock.locked()
        seen.append((event.op, event.number, event.nbytes, event.tag, event.used_bytes))
        if event.tag == "t" and event.op == "allocate":  # an event may use the allocator
            made.deallocate(made.allocate(1, tag="in"))

    made = Instrumented(Strict(), on_event=note)
    made.deallocate(made.allocate(5, tag="t"))
    assert seen == [
        ("allocate", 1, 5, "t", 5),
        ("allocate", 2, 1, "in", 6),
        ("deallocate", 2, 1, "in", 5),
        ("deallocate", 1, 5, "t", 0),
    ]


def test_what_was_put_down_is_told_by_whoever_gives_it_back():
    seen = []
    made = Instrumented(Strict(), on_event=lambda event: seen.append(event.op))
    held = [made.allocate(5, tag="t") for _ in range(2)]
    with made._lock:
        made.deallocate(held[0])
    assert made.counts().deallocations == 1
    with made._lock:
        made.deallocate(held[1])
    made.outstanding()
    assert seen == ["allocate", "allocate", "deallocate", "deallocate"]


def test_through_buffers_no_callback_is_under_a_lock_either():
    seen = []
    made = Instrumented(
        Strict(room=100),
        on_failure=lambda *_: seen.append(locked()) or False,
        on_event=lambda _: seen.append(locked()),
    )
    heap = Buffers(made)

    def locked():
        found = []

        def probe():
            found.append(heap._lock.acquire(blocking=False))
            if found[0]:
                heap._lock.release()

        worker = threading.Thread(target=probe)
        worker.start()
        worker.join()
        return not found[0]

    heap.allocate(4).free()
    with pytest.raises(OutOfMemory):
        heap.allocate(101)
    heap.allocate(4)  # dropped
    heap.settle()
    assert seen == [False] * 5


def test_a_hook_that_fails_is_reported_and_changes_nothing(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    made = Instrumented(Strict(), on_event=lambda event: {}[event.op])
    buffer = made.allocate(5, tag="t")
    made.deallocate(buffer)
    assert [(t.exc_type, t.object) for t in told] == [(KeyError, made)] * 2
    assert "in a hook" in told[0].err_msg
    assert made.used_bytes == 0


def test_every_buffer_is_in_the_ledger_which_may_refuse():
    ledger = Ledger(limit_bytes=100)
    below = Strict(room=90)
    made = Instrumented(below, ledger=ledger)
    buffer = made.allocate(60, tag="kv")
    assert ledger.by_tag() == {"kv": 60}
    calls = below.calls
    with pytest.raises(OutOfMemory, match="exceed the limit"):
        made.allocate(41, tag="kv")
    assert below.calls == calls
    with pytest.raises(OutOfMemory, match="full"):
        made.allocate(40, tag="kv")
    assert (ledger.used_bytes, ledger.peak_bytes) == (60, 60)
    made.deallocate(buffer)
    assert ledger.used_bytes == 0


def test_a_buffer_that_the_upstream_will_not_take_back_stays():
    class Stubborn(Strict):
        def deallocate(self, buffer):
            raise MemoryFault("not now")

    for made in (Instrumented(Stubborn()), ThreadSafe(Stubborn())):
        buffer = made.allocate(5, tag="t")
        for _ in range(2):
            with pytest.raises(MemoryFault, match="not now"):
                made.deallocate(buffer)
    made = Instrumented(Stubborn())
    buffer = made.allocate(5, tag="t")
    with pytest.raises(MemoryFault):
        made.deallocate(buffer)
    assert made.used_bytes == 5


def test_freeing_never_waits_and_what_was_put_down_makes_room_at_once():
    entered, leave = threading.Event(), threading.Event()

    class Slow(Strict):
        def allocate(self, nbytes, *, tag):
            if tag == "slow":
                entered.set()
                assert leave.wait(10)
            return super().allocate(nbytes, tag=tag)

    below = Slow(room=100)
    made, got = ThreadSafe(below), []
    held = made.allocate(80, tag="t")
    worker = threading.Thread(target=lambda: got.append(made.allocate(50, tag="slow")))
    worker.start()
    assert entered.wait(10)
    made.deallocate(held)  # while a call is under way
    assert below.used == 80
    with pytest.raises(InvalidBuffer):
        made.deallocate(held)
    leave.set()
    worker.join()
    assert below.used == 50  # it found the room that was put down meanwhile
    made.deallocate(got.pop())
    assert below.used == 0


def test_an_error_of_a_later_release_is_reported(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)

    class Stubborn(Strict):
        def deallocate(self, buffer):
            raise MemoryFault("not now")

    made = ThreadSafe(Stubborn())
    buffer = made.allocate(4, tag="t")
    with made._lock:
        made.deallocate(buffer)
    made.allocate(4, tag="t")
    assert [t.exc_type for t in told] == [MemoryFault]


def test_an_adaptor_has_the_abilities_of_its_upstream():
    for make in (ThreadSafe, Instrumented, Faulty):
        assert isinstance(make(Strict()), Reclaimer)
        assert not isinstance(make(Strict()), Trimmer)
        assert isinstance(make(BestFit(Strict())), Trimmer)
        assert not isinstance(make(HostAllocator()), Reclaimer)
        assert make(Strict()).preserves == {"address"}
    made = Instrumented(Strict())
    buffer = made.allocate(4, tag="t")
    made.suspend(buffer)
    assert made.upstream._suspended
    made.resume(buffer)
    assert not made.upstream._suspended
    made.deallocate(buffer)


def test_reserved_bytes_come_from_below():
    made = Instrumented(Binned(Strict()))
    buffer = made.allocate(300, tag="kv")
    stats = made.stats()
    assert (stats.allocated_bytes, stats.reserved_bytes, stats.accounted_bytes) == (512, 512, 300)
    made.deallocate(buffer)
    assert made.stats().reserved_bytes == 512
    assert made.trim(0) == 512
    assert made.stats().reserved_bytes == 0
