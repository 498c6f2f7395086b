from __future__ import annotations

import io
import lzma
import re

import pytest
import torch

from allocators import Strict
from trivet.contracts.memory import Exporter
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.adaptors import (
    Aligned,
    Entry,
    Faulty,
    Instrumented,
    Logging,
    Simulated,
    read,
    replay,
)
from trivet.memory.buffers import Buffers
from trivet.memory.pools import BestFit, Binned
from trivet.memory.ranges import Ranges


@pytest.mark.parametrize("alignment", [1, 64, 128, 4096])
def test_an_aligned_buffer_is_aligned_and_says_so(alignment):
    below = Strict()
    made = Aligned(below, alignment)
    assert made.traits().alignment == max(64, alignment)
    buffers = [made.allocate(n, tag="t") for n in (1, 100, 0, 65)]
    assert all(b.data_ptr() % alignment == 0 for b in buffers)
    assert [b.numel() for b in buffers] == [1, 100, 0, 65]
    made.suspend(buffers[1])
    made.resume(buffers[1])
    for buffer in buffers:
        made.deallocate(buffer)
    assert below.used == 0


def test_an_alignment_that_adds_nothing_passes_everything_on():
    made = Aligned(Strict(), 32)
    buffer = made.allocate(4, tag="t")
    assert made.open(made.export(buffer, "shm"), "shm") is buffer
    made.deallocate(buffer)
    assert made.traits().exportable == {"shm"}


def test_an_aligned_part_is_not_exported():
    made = Aligned(Strict(), 512)
    buffer = made.allocate(4, tag="t")
    assert isinstance(made, Exporter)
    assert made.traits().exportable == frozenset()
    with pytest.raises(MemoryFault, match="cannot be exported"):
        made.export(buffer, "shm")
    with pytest.raises(InvalidBuffer):
        made.suspend(buffer[:])
    made.deallocate(buffer)


@pytest.mark.parametrize("alignment", [0, -64, 48])
def test_an_odd_alignment_is_refused(alignment):
    with pytest.raises(MemoryFault, match="an alignment of"):
        Aligned(Strict(), alignment)


def work(made):
    """Three buffers, one suspended between, one refused."""
    first, second = made.allocate(100, tag="kv"), made.allocate(20, tag="w,x")
    made.suspend(first)
    made.resume(first)
    made.deallocate(first)
    with pytest.raises(OutOfMemory):
        made.allocate(1 << 20, tag="kv")
    return second


WORK = [
    Entry("allocate", 1, 100, "kv"),
    Entry("allocate", 2, 20, "w,x"),
    Entry("suspend", 1, 100, "kv"),
    Entry("resume", 1, 100, "kv"),
    Entry("deallocate", 1, 100, "kv"),
    Entry("failed", 0, 1 << 20, "kv"),
]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_is_read_as_it_was_written(form, packed, tmp_path):
    sink, ticks = io.StringIO(), iter(range(1, 99))
    work(Logging(Strict(), sink, form=form, clock=lambda: next(ticks)))
    path = tmp_path / ("log.xz" if packed else "log")
    if packed:
        path.write_bytes(lzma.compress(sink.getvalue().encode()))
    else:
        path.write_text(sink.getvalue(), encoding="utf-8")
    found = list(read(path))
    assert [e.time for e in found] == list(range(1, 7))
    assert [Entry(e.op, e.id, e.bytes, e.tag, e.stream) for e in found] == WORK


@pytest.mark.parametrize(
    "text",
    ["op,id\nallocate,1\n", "op,id,bytes\nallocate,1,many\n", '{"op": "allocate"}\n', "{\n",
     "op,id,bytes\nallocate\n"],
)  # fmt: skip
def test_what_is_no_log_is_refused(text, tmp_path):
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MemoryFault, match="is none of an allocation log"):
        list(read(path))


def test_a_log_that_cannot_be_written_undoes_the_allocation():
    below = Strict()
    sink = io.StringIO()
    made = Logging(below, sink)
    sink.close()
    with pytest.raises(ValueError, match="closed file"):
        made.allocate(4, tag="t")
    assert below.used == 0


def test_a_replay_gives_back_everything_and_says_what_was_live():
    below = Strict()
    seen = []
    done = replay(WORK, below, after=seen.append)
    assert (done.operations, done.failed, done.peak_bytes, done.live_bytes) == (5, 0, 120, 20)
    assert seen == [100, 120, 120, 120, 20]
    assert below.used == 0
    done = replay([e for e in WORK if e.op in {"allocate", "deallocate"}], Simulated(64))
    assert (done.operations, done.failed, done.peak_bytes) == (1, 1, 20)


def test_a_replay_refuses_a_log_that_contradicts_itself():
    below = Strict()
    with pytest.raises(MemoryFault, match="deallocate of buffer 7"):
        replay([Entry("allocate", 1, 5), Entry("deallocate", 7, 5)], below)
    assert below.used == 0


def test_chosen_calls_fail():
    made = Faulty(Strict(), every=3, at={1})
    outcomes = []
    for _ in range(6):
        try:
            made.deallocate(made.allocate(1, tag="t"))
            outcomes.append(True)
        except OutOfMemory as error:
            assert error.retryable  # noqa: PT017  # both ways are wanted
            outcomes.append(False)
    assert outcomes == [False, True, False, True, True, False]
    assert (made.calls["allocate"], made.failed["allocate"]) == (6, 3)


def test_suspension_and_export_fail_as_the_contract_allows():
    made = Faulty(Strict(), every=1, on=("suspend", "resume", "export", "open"))
    buffer = made.allocate(8, tag="t")
    with pytest.raises(MemoryFault):
        made.suspend(buffer)
    with pytest.raises(OutOfMemory) as caught:
        made.resume(buffer)
    assert caught.value.requested_bytes == 8
    with pytest.raises(MemoryFault):
        made.export(buffer, "shm")
    with pytest.raises(MemoryFault):
        made.open(b"", "shm")
    made.close(buffer)
    made.deallocate(buffer)


def test_unknown_operations_cannot_fail():
    with pytest.raises(MemoryFault, match="failures of fly"):
        Faulty(Strict(), on=("fly",))


def test_pretended_memory_shows_fragmentation():
    made = Simulated(1024)
    buffers = [made.allocate(64, tag="t") for _ in range(16)]
    assert [made.address(b) for b in buffers] == list(range(0, 1024, 64))
    for buffer in buffers[::2]:
        made.deallocate(buffer)
    assert (made.used_bytes, made.peak_bytes) == (512, 1024)
    assert made.fragmentation == 1 - 64 / 512
    with pytest.raises(OutOfMemory, match="the largest has 64") as caught:
        made.allocate(128, tag="t")
    assert caught.value.free_bytes == 512
    made.deallocate(buffers[1])
    assert made.address(made.allocate(190, tag="t")) == 0
    with pytest.raises(InvalidBuffer):
        made.address(buffers[1])


@pytest.mark.parametrize(("fit", "place"), [("first", 0), ("best", 512)])
def test_fits_choose_as_their_names_say(fit, place):
    made = Simulated(1024, fit=fit)
    buffers = [made.allocate(n, tag="t") for n in (256, 256, 64, 448)]
    made.deallocate(buffers[0])
    made.deallocate(buffers[2])
    assert made.address(made.allocate(64, tag="t")) == place


def test_pages_round_sizes_and_odd_ones_are_refused():
    made = Simulated(1 << 20, alignment=512, page_bytes=4096)
    buffers = [made.allocate(1, tag="t") for _ in range(2)]
    assert [made.address(b) for b in buffers] == [0, 4096]
    for wrong in ({"alignment": 48}, {"page_bytes": 100}, {"page_bytes": -64}):
        with pytest.raises(MemoryFault):
            Simulated(1024, **wrong)
    with pytest.raises(MemoryFault):
        made.allocate(-1, tag="t")


def test_pools_work_over_pretended_memory():
    below = Simulated(1 << 40)
    for pool in (Binned(below), BestFit(below)):
        buffer = pool.allocate(1 << 36, tag="t")  # more than any machine of the tests has
        assert buffer.shape == (1 << 36,)
        assert buffer.device == torch.device("meta")
        pool.deallocate(buffer)
        pool.trim(0)
    assert below.used_bytes == 0


def test_ranges_join_on_both_sides():
    ranges = Ranges()
    for start in (0, 20, 10):
        ranges.give(start, start + 10)
    assert list(ranges) == [(0, 30)]
    assert not ranges.remove(0, 10)
    assert ranges.take(31) is None
    assert (ranges.take(30), list(ranges), ranges.largest) == (0, [], 0)


def test_a_log_is_read_from_a_path_as_text_and_from_an_open_file(tmp_path):
    log = io.StringIO()
    noted = Logging(Simulated(1 << 20), log)
    noted.deallocate(noted.allocate(10, tag="t"))
    path = tmp_path / "log.csv"
    path.write_text(log.getvalue(), encoding="utf-8")
    log.seek(0)
    found = [list(read(str(path))), list(read(path)), list(read(log))]
    assert found[0] == found[1] == found[2]
    assert [entry.op for entry in found[0]] == ["allocate", "deallocate"]
    assert not log.closed


def test_what_is_no_log_at_all_is_no_empty_log():
    with pytest.raises(MemoryFault, match=r"'hello\\n' is none of an allocation log"):
        list(read(io.StringIO("hello\n")))
    assert list(read(io.StringIO(""))) == []  # of JSON lines, without a head


def test_an_operation_that_there_is_not_is_named():
    with pytest.raises(MemoryFault, match="the operation 'alocate'\n  fix: one of allocate"):
        replay([Entry("alocate", 1, 10)], Simulated(1 << 20))


def test_a_limit_below_nothing_is_refused():
    with pytest.raises(MemoryFault, match="-1 bytes is no limit"):
        Instrumented(Simulated(1 << 20), limit_bytes=-1)


@pytest.mark.parametrize("make", [Aligned, Binned, BestFit, Instrumented, Logging])
def test_a_stack_is_built_on_an_allocator_alone(make):
    more = {Aligned: (128,), Logging: (io.StringIO(),)}.get(make, ())
    for odd, why in ((None, "NoneType is no allocator"), (Buffers(Simulated(64)), "no traits()"),
                     (Simulated, "Simulated is a class")):  # fmt: skip
        with pytest.raises(MemoryFault, match=re.escape(why)):
            make(odd, *more)
