"""Logs of allocations that are damaged, foreign, or tell of what cannot be."""

from __future__ import annotations

import io
import lzma
import threading

import pytest
import torch

from allocators import Strict
from sleepers import CPU
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory, PluginBroken
from trivet.memory.adaptors import Aligned, Entry, Instrumented, Logging, Simulated, read, replay
from trivet.memory.budget import Budget
from trivet.memory.ledger import Ledger
from trivet.memory.pools import Arena, BestFit, Binned, Fixed
from trivet.memory.torch_allocator import TorchAllocator

GOOD = b"op,id,bytes,tag,stream,time\nallocate,1,64,kv_cache,0,5\ndeallocate,1,64,kv_cache,0,6\n"
ODD_LOGS = {
    "of ones": b"\xff" * 100,
    "of zeros": bytes(100),
    "cut": GOOD[:40],
    "cut before its end": GOOD[:-1],
    "of no number": GOOD.replace(b"64", b"sixty-four"),
    "of a fraction": GOOD.replace(b"64", b"6.4"),
    "below zero": GOOD.replace(b"64", b"-64"),
    "of an operation that is none": GOOD.replace(b"deallocate", b"__init__"),
    "of a huge field": b"op,id,bytes\nallocate,1," + b"9" * (1 << 18),
    "of bytes that are no text": GOOD.replace(b"kv_cache", b"\xc3\x28"),
    "of a list": b'{"op": "allocate", "id": 1, "bytes": 8}\n[1, 2]\n',
    "of infinity": b'{"op": "allocate", "id": 1, "bytes": Infinity}\n',
    "of nan": b'{"op": "allocate", "id": NaN, "bytes": 8}\n',
    "without end": b'{"op":' + b'{"a":' * 100_000,
    "of half a line": b'{"op": "alloc',
}


@pytest.mark.parametrize("told", ODD_LOGS.values(), ids=ODD_LOGS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_that_is_none_is_one_error_that_names_it(told, packed, tmp_path):
    path = tmp_path / ("log.xz" if packed else "log")
    path.write_bytes(lzma.compress(told) if packed else told)
    with pytest.raises(MemoryFault, match=str(path)):
        list(read(path))


@pytest.mark.parametrize("cut", [0, 6, 20, 40, -1])
def test_a_packed_log_that_is_cut_is_one_error(cut, tmp_path):
    path = tmp_path / "log.xz"
    path.write_bytes(lzma.compress(GOOD)[:cut])
    with pytest.raises(MemoryFault, match="cannot be read"):
        list(read(path))


def test_a_log_that_is_not_there_is_one_error(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(MemoryFault, match="cannot be read"):
            list(read(path))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_tags_of_any_text_come_back(form, tmp_path):
    path = tmp_path / "log"
    tags = ["", "a,b", 'say "no"', "two\nlines", "a\rreturn", "\0", "\x1b[31m", "\u202e", "日本"]
    with path.open("w", encoding="utf-8", newline="") as sink:
        log = Logging(TorchAllocator(CPU), sink, form=form)
        for tag in tags:
            log.deallocate(log.allocate(8, tag=tag))
    assert [entry.tag for entry in read(path)] == [tag for tag in tags for _ in range(2)]


def entry(op, number, nbytes=8):
    return Entry(op, number, nbytes)


@pytest.mark.parametrize(("entries", "why"), [
    ([entry("allocate", 1), entry("allocate", 1)], "which is live"),
    ([entry("deallocate", 1)], "which is not live"),
    ([entry("allocate", 1), entry("suspend", 2)], "which is not live"),
    ([entry("allocate", 1), entry("traits", 1)], "the operation 'traits'"),
    ([entry("allocate", 1), entry("resume", 1)], "cannot resume"),
    ([entry("allocate", 1, -8)], "cannot be made"),
])  # fmt: skip
def test_a_log_that_cannot_be_played_leaves_nothing(entries, why):
    room = Simulated(1 << 10)
    with pytest.raises(MemoryFault, match=why):
        replay(entries, room)
    assert room.used_bytes == 0


class Keeper(Simulated):
    """Takes nothing back."""

    def deallocate(self, buffer):
        raise ValueError("mine")


def test_what_is_not_taken_back_does_not_hide_what_failed_first():
    def stop(live):
        raise RuntimeError("stopped")

    keeper = Keeper(1 << 10)
    with pytest.raises(RuntimeError, match="stopped") as caught:
        replay([entry("allocate", 1)], keeper, after=stop)
    assert caught.value.__notes__ == ["a buffer did not go back: ValueError: mine"]
    with pytest.raises(ValueError, match="mine"):
        replay([entry("allocate", 1)], keeper)

    class Full(io.StringIO):
        def write(self, text):
            raise OSError("no room for the log")

    log = Logging(Keeper(1 << 10), io.StringIO())
    log._sink = Full()
    log._form = "jsonl"
    with pytest.raises(OSError, match="no room for the log") as caught:
        log.allocate(8, tag="")
    assert caught.value.__notes__ == ["the buffer did not go back either: ValueError: mine"]
    with pytest.raises(OutOfMemory) as full:
        log.allocate(1 << 11, tag="")
    assert full.value.__notes__ == ["the log has no line of it: OSError: no room for the log"]


def test_a_number_that_was_lost_is_another_buffer_later():
    played = [entry("allocate", 1, 1 << 20), entry("allocate", 1), entry("deallocate", 1)]
    done = replay(played, Simulated(1 << 10))
    assert (done.failed, done.operations, done.live_bytes) == (1, 2, 0)


POOLS = {
    "arena": lambda up: Arena(up, 1 << 12), "best fit": lambda up: BestFit(up, least_bytes=1 << 12),
    "binned": Binned, "fixed": lambda up: Fixed(up, 256, blocks=4),
    "aligned": lambda up: Aligned(up, 4096), "instrumented": Instrumented,
    "simulated": lambda _: Simulated(1 << 12), "torch": lambda _: TorchAllocator(CPU),
}  # fmt: skip


@pytest.mark.parametrize("make", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("nbytes", [-1, 1.5, float("nan"), float("inf"), "8", None, [8]])
def test_no_allocator_takes_a_size_that_is_none(make, nbytes):
    pool = make(Strict())
    kept = pool.allocate(100, tag="")
    pool.deallocate(pool.allocate(7, tag=""))
    for _ in range(2):
        with pytest.raises(MemoryFault, match="cannot be made"):
            pool.allocate(nbytes, tag="")
    pool.deallocate(pool.allocate(7, tag=""))
    pool.deallocate(kept)


@pytest.mark.parametrize("make", [m for n, m in POOLS.items() if n != "torch"])
@pytest.mark.parametrize("what", [None, 5, "buffer", torch.zeros(3).to_sparse(), torch.empty(9)])
def test_no_allocator_takes_back_what_is_no_buffer(make, what):
    with pytest.raises(InvalidBuffer, match="has no live buffer"):
        make(Strict()).deallocate(what)


class Short(Strict):
    """Gives less than it is asked for."""

    def allocate(self, nbytes, *, tag):
        return super().allocate(nbytes - 1, tag=tag)


@pytest.mark.parametrize("name", ["arena", "best fit", "binned", "fixed", "aligned"])
def test_a_piece_that_is_too_small_is_refused_where_it_comes_from(name):
    short = Short()
    with pytest.raises(PluginBroken, match="was asked for"):
        POOLS[name](short).allocate(64, tag="")
    assert short.used == 0


def test_a_trim_that_fails_does_not_hide_that_memory_is_out():
    class Busy(Strict):
        def deallocate(self, buffer):
            raise ValueError("busy")

    pool = Binned(Busy(room=1 << 10))
    pool.deallocate(pool.allocate(512, tag=""))
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(1 << 10, tag="")
    assert "does not take 512 bytes back" in caught.value.__notes__[0]


def test_who_watches_the_account_may_use_the_instrumented_allocator():
    ledger = Ledger(100)
    budget = Budget(ledger)
    made = Instrumented(Strict(), ledger=ledger)
    cached = [made.allocate(60, tag="cache")]

    def release(nbytes):
        made.deallocate(made.allocate(0, tag="note"))  # it waited for itself here
        made.deallocate(cached.pop())
        return 60

    budget.register_reclaimable("cache", 0, release)
    pressure = []
    budget.on_pressure(
        lambda p: pressure.append(p.high) or made.deallocate(made.allocate(0, tag="")), at=0.5
    )
    taken = []
    thread = threading.Thread(
        target=lambda: taken.append(made.allocate(80, tag="kv_cache")), daemon=True
    )
    thread.start()
    thread.join(20)
    (kept,) = taken  # none of a thread that waits for itself
    assert (ledger.by_tag(), made.used_bytes) == ({"kv_cache": 80}, 80)
    made.deallocate(kept)
    assert (ledger.used_bytes, made.used_bytes) == (0, 0)
    assert pressure[0]
    assert not pressure[-1]


@pytest.mark.parametrize("limit", [-1, float("nan"), "8"])
def test_an_instrumented_limit_that_is_none_is_refused(limit):
    made = Instrumented(Strict(), limit_bytes=10)
    for name in ("limit_bytes", "soft_limit_bytes"):
        with pytest.raises(MemoryFault, match="is no limit"):
            setattr(made, name, limit)
        with pytest.raises(MemoryFault, match="is no limit"):
            Instrumented(Strict(), **{name: limit})
    with pytest.raises(OutOfMemory):
        made.allocate(11, tag="")
    with pytest.raises(MemoryFault, match="a tag is text"):
        made.allocate(1, tag=["unhashable"])
    assert made.used_bytes == 0
