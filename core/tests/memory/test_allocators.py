"""One suite for every allocator, adaptor and pool of core."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from allocators import STACKS, Stack, Strict, safe, trimmed
from trivet.contracts.memory import Allocator
from trivet.errors import InvalidBuffer, OutOfMemory
from trivet.memory.adaptors import Faulty
from trivet.memory.buffers import Buffers


@pytest.fixture(params=STACKS)
def stack(request):
    """Each of them in turn; a test may choose by ``OVER`` or ``CHECKS``."""
    return STACKS[request.param]


OVER = pytest.mark.parametrize("stack", [n for n, s in STACKS.items() if s.over], indirect=True)
CHECKS = pytest.mark.parametrize("stack", [n for n, s in STACKS.items() if s.checks], indirect=True)


@pytest.fixture
def below():
    return Strict()


@pytest.fixture
def made(stack, below):
    return stack.make(below)


def place(allocator, buffer):
    """First and last address of a buffer."""
    start = allocator.address(buffer) if hasattr(allocator, "address") else buffer.data_ptr()
    return start, start + buffer.numel()


def test_buffers_are_aligned_disjoint_and_keep_what_is_written(stack: Stack, made):
    assert isinstance(made, Allocator)
    traits, live, dice = made.traits(), [], random.Random(0)  # noqa: S311  # reproducible
    for turn in range(120):
        if live and (len(live) > 8 or dice.random() < 0.4):
            buffer, mark = live.pop(dice.randrange(len(live)))
            assert not stack.reads or buffer.eq(mark).all()
            made.deallocate(buffer)
            continue
        nbytes = dice.choice([1, 7, 63, 64, 65, 100, 257, 1000, 1999])
        try:
            buffer = made.allocate(nbytes, tag="t")
        except OutOfMemory:  # an arena that is freed from below
            continue
        assert (buffer.dtype, buffer.shape, buffer.is_contiguous()) == (
            torch.uint8, (nbytes,), True,
        )  # fmt: skip
        start, end = place(made, buffer)
        assert start % traits.alignment == 0
        for other, _ in live:
            first, last = place(made, other)
            assert end <= first or last <= start
        if stack.reads:
            buffer.fill_(turn % 251)
        live.append((buffer, turn % 251))
    assert all(not stack.reads or buffer.eq(mark).all() for buffer, mark in live)


def test_empty_buffers_are_buffers(made, below):
    first, second = made.allocate(0, tag="a"), made.allocate(0, tag="b")
    assert first is not second
    assert (first.shape, second.numel()) == ((0,), 0)
    made.deallocate(first)
    made.deallocate(second)
    trimmed(made)
    assert below.used == 0


def fill(made, nbytes):
    found = []
    while True:
        try:
            found.append(made.allocate(nbytes, tag="t"))
        except OutOfMemory as error:
            assert error.requested_bytes > 0  # noqa: PT017  # the loop ends by it
            return found


@CHECKS
def test_exhaustion_is_typed_and_all_comes_back(stack, made, below):
    counts = []
    for nbytes in (1000, stack.largest, 1000):
        found = fill(made, nbytes)
        assert found
        counts.append(len(found))
        random.Random(len(found)).shuffle(found)  # noqa: S311  # reproducible
        for buffer in found:
            made.deallocate(buffer)
    assert counts[0] <= counts[2]  # segments of another size may hold more
    trimmed(made)
    assert below.used == 0


def numbers(made):
    """Every counter of an allocator and those below it, except of failures."""
    found = []
    while made is not None:
        if hasattr(made, "stats"):
            found.append(made.stats().to_json())
        if hasattr(made, "counts"):
            found.append(made.counts().to_json() | {"failures": 0})
        found.append(getattr(made, "used", None))
        made = getattr(made, "upstream", None)
    return found


@OVER
def test_a_failure_changes_no_counter(stack, made):
    held = fill(made, min(1000, stack.largest))
    before = numbers(made)
    with pytest.raises(torch.OutOfMemoryError):
        made.allocate(min(1000, stack.largest), tag="t")
    assert numbers(made) == before
    for buffer in held:
        made.deallocate(buffer)


@CHECKS
def test_what_is_not_live_is_refused_and_nothing_changes(made):
    held, gone = made.allocate(100, tag="t"), made.allocate(100, tag="t")
    made.deallocate(gone)
    before = numbers(made)
    for wrong in (gone, held[:], torch.empty(100, dtype=torch.uint8)):
        with pytest.raises(InvalidBuffer):
            made.deallocate(wrong)
    assert numbers(made) == before
    made.deallocate(held)


def script(made, rounds=30):
    """Allocates and frees by a fixed pattern."""
    dice, live = random.Random(3), []  # noqa: S311  # reproducible
    for _ in range(rounds):
        if len(live) > 5:
            made.deallocate(live.pop(dice.randrange(len(live))))
        try:
            live.append(made.allocate(dice.randrange(2000), tag="t"))
        except OutOfMemory:
            continue
    for buffer in live:
        made.deallocate(buffer)


@OVER
def test_a_failure_at_any_call_loses_nothing(stack):
    below = Strict()
    probe = Faulty(below)
    script(stack.make(probe))
    assert probe.calls["allocate"]
    for call in range(1, probe.calls["allocate"] + 1):
        below = Strict()
        faulty = Faulty(below, at={call})
        made = stack.make(faulty)
        script(made)
        assert faulty.failed["allocate"] == 1
        trimmed(made)
        assert below.used == 0, f"call {call}"


def test_threads_see_their_own_bytes(stack, made, below):
    shared, failures = safe(made), []

    def work(mine):
        dice, live = random.Random(mine), []  # noqa: S311  # reproducible
        try:
            for _ in range(100):
                if len(live) > 3:
                    buffer = live.pop(0)
                    assert not stack.reads or buffer.eq(mine).all()
                    shared.deallocate(buffer)
                try:
                    buffer = shared.allocate(dice.randrange(1, 1000), tag=str(mine))
                except OutOfMemory:
                    continue
                if stack.reads:
                    buffer.fill_(mine)
                live.append(buffer)
            for buffer in live:
                shared.deallocate(buffer)
        except BaseException as error:  # noqa: BLE001  # told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    trimmed(shared)
    assert below.used == 0


class Held:
    """Frees a buffer in its finaliser, which only the collector reaches."""

    def __init__(self, allocator):
        self.allocator, self.buffer = allocator, allocator.allocate(50, tag="held")
        self.me = self

    def __del__(self):
        self.allocator.deallocate(self.buffer)


def test_a_finaliser_may_free_inside_any_call(stack):
    below = Strict(collects=True)
    shared = safe(stack.make(below))
    for _ in range(20):
        Held(shared)
        shared.deallocate(shared.allocate(3000 if stack.largest >= 3000 else 1, tag="t"))
    gc.collect()
    trimmed(shared)
    assert below.used == 0


def test_buffers_over_any_allocator(made, below):
    heap = Buffers(made)
    with heap.allocate(64, tag="t") as buffer:
        assert buffer.nbytes == 64
    heap.allocate(64)  # dropped
    heap.settle()
    assert heap.leaked == 1
    trimmed(made)
    assert below.used == 0


def test_nothing_is_loaded_unasked_and_an_interpreter_ends_in_silence_with_buffers_live():
    program = """
        import sys
        import torch
        import trivet
        trivet.device("auto").memory.empty((1,), dtype=torch.float32)
        unasked = ("trivet.memory.adaptors", "trivet.memory.pools", "trivet.memory.ranges")
        loaded = [m for m in sys.modules if m.startswith(unasked)]
        assert not loaded, loaded
        sys.path.insert(0, sys.argv[1])
        from allocators import STACKS, Strict, safe
        class Held:
            def __init__(self, allocator):
                self.allocator, self.buffer = allocator, allocator.allocate(9, tag="t")
            def __del__(self):
                self.allocator.deallocate(self.buffer)
        kept = []
        for stack in STACKS.values():
            shared = safe(stack.make(Strict()))
            held = Held(shared)
            held.me = held
            kept += [Held(shared), held, shared.allocate(5, tag="t")]
        sys.modules["kept"] = kept
    """
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program),
         str(Path(__file__).resolve().parents[1])],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
