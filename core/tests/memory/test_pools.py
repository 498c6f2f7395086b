from __future__ import annotations

import importlib
import random
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from allocators import Strict
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.adaptors import Faulty, Instrumented, Simulated, read
from trivet.memory.pools import Arena, BestFit, Binned, Fixed

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_parts_promise_less_than_the_whole():
    below = Strict()
    assert below.traits().zeroed
    for pool in (Binned(below), BestFit(below), Fixed(below, 64), Arena(below, 64)):
        assert not pool.traits().zeroed
        assert pool.traits().exportable == frozenset()
        assert pool.upstream is below


def test_a_freed_block_of_a_class_comes_again():
    below = Strict()
    pool = Binned(below)
    first = pool.allocate(300, tag="t")
    first.fill_(7)
    pool.deallocate(first)
    again = pool.allocate(500, tag="t")
    assert again.data_ptr() == first.data_ptr()
    assert below.calls == 1
    assert (pool.stats().allocated_bytes, pool.stats().reserved_bytes) == (512, 512)
    pool.deallocate(again)


@pytest.mark.parametrize(
    ("nbytes", "size"), [(0, 256), (1, 256), (256, 256), (257, 512), (512, 512), (513, 1024)]
)
def test_classes_are_powers_of_two(nbytes, size):
    pool = Binned(Strict())
    pool.allocate(nbytes, tag="t")
    assert pool.stats().reserved_bytes == size


def test_configured_classes_and_what_is_above_them():
    below = Strict()
    pool = Binned(below, classes=(100, 1000))
    held = [pool.allocate(n, tag="t") for n in (0, 100, 101, 5000)]
    assert below.used == 100 + 100 + 1000 + 5000
    for buffer in held:
        pool.deallocate(buffer)
    assert below.used == 1200
    assert pool.trim(1) == 1000
    assert pool.trim(0) == 200
    for wrong in ((0, 5), (5, 5), (9, 5)):
        with pytest.raises(MemoryFault, match="size classes"):
            Binned(below, classes=wrong)


@pytest.mark.parametrize("make", [Binned, BestFit, lambda up: Fixed(up, 64)])
def test_a_negative_size_is_refused(make):
    with pytest.raises(MemoryFault, match="-1 bytes"):
        make(Strict()).allocate(-1, tag="t")


def test_a_pool_trims_itself_before_it_gives_up():
    for pool in (Binned(Strict(room=8192)), BestFit(Strict(room=8192), least_bytes=4096)):
        held = [pool.allocate(4096, tag="t") for _ in range(2)]
        for buffer in held:
            pool.deallocate(buffer)
        buffer = pool.allocate(8192, tag="t")
        assert pool.stats().reserved_bytes == 8192
        with pytest.raises(OutOfMemory):
            pool.allocate(1, tag="t")
        pool.deallocate(buffer)


def test_blocks_are_equal_and_slabs_bounded():
    below = Strict()
    pool = Fixed(below, 100, blocks=2, slabs=2)
    assert pool.block_bytes == 128
    held = [pool.allocate(n, tag="t") for n in (128, 1, 0, 100)]
    assert below.used == 512
    assert held[0].data_ptr() + 128 == held[1].data_ptr()
    with pytest.raises(OutOfMemory, match="all 4 blocks are live") as caught:
        pool.allocate(1, tag="t")
    assert caught.value.retryable
    with pytest.raises(OutOfMemory, match="blocks have 128 bytes") as caught:
        pool.allocate(129, tag="t")
    assert not caught.value.retryable
    pool.deallocate(held[1])
    assert pool.trim(0) == 0
    pool.deallocate(held[0])
    assert pool.trim(0) == 256
    for buffer in held[2:]:
        pool.deallocate(buffer)
    assert pool.trim(1) == 256
    for wrong in ({"block_bytes": 0}, {"block_bytes": 1, "blocks": 0}):
        with pytest.raises(MemoryFault):
            Fixed(below, **wrong)


def test_an_arena_goes_back_to_a_mark():
    below = Strict()
    arena = Arena(below, 1000)
    kept = arena.allocate(100, tag="t")
    mark = arena.mark()
    for _ in range(2):
        gone = [arena.allocate(200, tag="t") for _ in range(3)]
        with pytest.raises(OutOfMemory):
            arena.allocate(400, tag="t")
        assert arena.reset(mark) == 3 * 256
        with pytest.raises(InvalidBuffer):
            arena.deallocate(gone[0])
    assert arena.trim(0) == 0
    arena.deallocate(kept)
    assert arena.trim(0) == 1024
    assert below.used == 0


def test_room_in_an_arena_comes_back_from_the_top():
    arena = Arena(Strict(), 192)
    one, two, three = (arena.allocate(64, tag="t") for _ in range(3))
    arena.deallocate(two)
    with pytest.raises(OutOfMemory):
        arena.allocate(1, tag="t")
    arena.deallocate(three)
    arena.allocate(128, tag="t")
    arena.deallocate(one)
    assert arena.reset() == 128
    assert arena.stats().allocated_bytes == 0


def test_a_mark_ends_with_the_buffer_under_it():
    arena = Arena(Strict(), 1024)
    one, two = arena.allocate(64, tag="t"), arena.allocate(64, tag="t")
    mark = arena.mark()
    arena.deallocate(two)
    arena.allocate(64, tag="t")
    for wrong in (mark, Arena(Strict(), 64).mark()):
        with pytest.raises(MemoryFault, match="the mark is none"):
            arena.reset(wrong)
    low = Arena(Strict(), 64).mark()
    assert low.count == 0
    arena.deallocate(one)
    assert arena.reset() == 64


def test_a_mark_outlives_what_is_freed_under_it():
    arena = Arena(Strict(), 1024)
    one, two = arena.allocate(64, tag="t"), arena.allocate(64, tag="t")
    mark = arena.mark()
    arena.allocate(64, tag="t")
    arena.deallocate(one)
    arena.deallocate(two)
    assert arena.reset(mark) == 64
    assert arena._top == 0


def test_freed_neighbours_become_one():
    below = Strict()
    pool = BestFit(below, least_bytes=4096)
    held = [pool.allocate(1024, tag="t") for _ in range(4)]
    for at in (0, 2, 1, 3):
        pool.deallocate(held[at])
    whole = pool.allocate(4096, tag="t")
    assert below.calls == 1
    pool.deallocate(whole)
    assert pool.trim(0) == 4096


def test_segments_that_lie_empty_go_back_before_the_peak_rises():
    below = Instrumented(Strict())
    pool = BestFit(below, least_bytes=1024)
    for nbytes in (1024, 2048, 4096, 8192):
        pool.deallocate(pool.allocate(nbytes, tag="t"))
    assert below.counts().peak_bytes == 8192
    with pytest.raises(MemoryFault, match="segments between"):
        BestFit(below, least_bytes=64, most_bytes=32)


def test_the_grain_grows_with_the_pool():
    below = Simulated(1 << 40)
    pool = BestFit(below, least_bytes=1 << 10, most_bytes=1 << 20)
    sizes = []
    for _ in range(300):
        before = below.used_bytes
        pool.allocate(1 << 16, tag="t")
        sizes.append(below.used_bytes - before)
    grown = [size for size in sizes if size]
    assert grown == sorted(grown)
    assert (grown[0], grown[-1]) == (1 << 16, 1 << 20)


@pytest.mark.parametrize("make", [Binned, lambda up: Binned(up, classes=(64, 4096)), BestFit])
def test_the_same_calls_give_the_same_addresses(make):
    def addresses():
        below = Simulated(1 << 40)
        noted = []

        class Noting(Simulated):
            def allocate(self, nbytes, *, tag):
                noted.append(nbytes)
                return below.allocate(nbytes, tag=tag)

            def deallocate(self, buffer):
                noted.append(-below.address(buffer))
                below.deallocate(buffer)

        pool, dice, live = make(Noting(1)), random.Random(5), []  # noqa: S311  # reproducible
        for _ in range(300):
            if len(live) > 20:
                pool.deallocate(live.pop(dice.randrange(20)))
            live.append(pool.allocate(dice.randrange(1 << 21), tag="t"))
            if dice.random() < 0.05:
                noted.append(pool.trim(1 << 20))
        return noted

    assert addresses() == addresses()


@pytest.mark.parametrize("make", [Binned, BestFit, lambda up: Fixed(up, 1 << 12)])
@pytest.mark.soak
def test_a_million_operations_leave_nothing(make):
    below = Strict(room=1 << 30)
    pool, dice, live = make(below), random.Random(9), []  # noqa: S311  # reproducible
    for _ in range(1_000_000):
        if len(live) > 64 or (live and dice.random() < 0.4):
            pool.deallocate(live.pop(dice.randrange(len(live))))
        else:
            live.append(pool.allocate(dice.randrange(1 << 12), tag="t"))
    for buffer in live:
        pool.deallocate(buffer)
    assert pool.stats().allocated_bytes == 0
    assert pool.stats().reserved_bytes == below.used
    pool.trim(0)
    assert below.used == 0


def test_a_failed_trim_keeps_its_account():
    class Stubborn(Strict):
        def deallocate(self, buffer):
            raise MemoryFault("not now")

    for make in (Binned, BestFit, lambda up: Fixed(up, 64), lambda up: Arena(up, 64)):
        below = Stubborn(room=1 << 25)
        pool = make(below)
        pool.deallocate(pool.allocate(64, tag="t"))
        held = pool.stats().reserved_bytes
        with pytest.raises(MemoryFault, match="not now"):
            pool.trim(0)
        assert pool.stats().reserved_bytes == held == below.used
        pool.deallocate(pool.allocate(64, tag="t"))
        assert pool.stats().reserved_bytes == held


def test_a_second_failure_of_the_upstream_is_the_callers():
    pool = BestFit(Faulty(Strict(room=1 << 25), at={2, 3}))
    held = pool.allocate(1 << 20, tag="t")
    kept = pool.allocate(1 << 20, tag="t")
    pool.deallocate(held)
    with pytest.raises(OutOfMemory):
        pool.allocate(1 << 22, tag="t")
    pool.deallocate(kept)


@pytest.fixture
def benchmark_of(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module


@pytest.fixture
def policy(benchmark_of):
    return benchmark_of("torch_policy").TorchPolicy


@pytest.mark.parametrize("scale", [1, 16])
def test_a_recorded_engine_reserves_no_more_than_with_torchs_policy(benchmark_of, scale):
    bench = benchmark_of("memory_replay")
    lines = read(bench.DATA / "smollm2-135m-mixed.csv.xz")
    entries = [replace(e, bytes=e.bytes * scale) for e in islice(lines, 4000)]
    ours, torchs = bench.through_pool(entries, bench.PAGE, BestFit), bench.through_torch(entries)
    assert max(ours.live) == max(torchs.live)
    assert max(ours.live) <= ours.peak <= torchs.peak


MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], 2), ([MIB], 2), ([MIB] * 2, 2), ([MIB, MIB, 1], 4), ([MIB + 1], 20),
        ([5 * MIB] * 4, 20), ([10 * MIB], 10), ([10 * MIB + 1], 12), ([9 * MIB] * 2, 20),
        ([0], 0), ([19 * MIB, MIB + 1], 40), ([9 * MIB, 10 * MIB, MIB + 1], 40),
    ],
)  # fmt: skip
def test_the_peer_reserves_as_torch_does(policy, sizes, reserved):
    peer = policy()
    blocks = [peer.allocate(size) for size in sizes]
    assert peer.reserved == reserved * MIB
    for block in blocks:
        peer.deallocate(block)
    for size in sizes:
        peer.allocate(size)
    assert peer.reserved == peer.peak_reserved == reserved * MIB
