"""State machines: every allocator against a model that is a list of live buffers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from allocators import ROOM, STACKS, Strict, trimmed
from trivet.errors import InvalidBuffer
from trivet.memory.adaptors import Faulty

SIZES = st.sampled_from([0, 1, 63, 64, 65, 200, 256, 1000, 1024, 1999, 5000, ROOM // 2, ROOM * 2])


class AllocatorModel(RuleBasedStateMachine):
    """Live buffers with their marks are the model; the subclass says which allocator."""

    stack = None

    def __init__(self):
        super().__init__()
        self.below = Strict()
        self.fault = Faulty(self.below)
        self.made = self.stack.make(self.fault)
        self.live, self.gone, self.mark = [], None, 0

    @rule(nbytes=SIZES, fails=st.sampled_from([False, False, False, True]))
    def allocate(self, nbytes, fails):
        if nbytes > ROOM and not self.stack.checks:
            return  # torch has the machine's memory
        if fails and self.stack.over:
            self.fault._at = frozenset({self.fault.calls["allocate"] + 1})
        try:
            buffer = self.made.allocate(nbytes, tag="t")
        except torch.OutOfMemoryError:
            return
        finally:
            self.fault._at = frozenset()
        assert nbytes <= ROOM
        assert buffer.shape == (nbytes,)
        assert all(buffer is not other for other, _ in self.live)
        self.mark = (self.mark + 1) % 251
        if self.stack.reads:
            assert buffer.data_ptr() % self.made.traits().alignment == 0
            buffer.fill_(self.mark)
        self.live.append((buffer, self.mark))

    @precondition(lambda self: self.live)
    @rule(at=st.integers(0, 99))
    def deallocate(self, at):
        buffer, mark = self.live.pop(at % len(self.live))
        assert not self.stack.reads or buffer.eq(mark).all()
        self.made.deallocate(buffer)
        self.gone = None if any(buffer is other for other, _ in self.live) else buffer

    @precondition(lambda self: self.live)
    @rule()
    def refuse(self):
        if self.stack.checks:
            with pytest.raises(InvalidBuffer):
                self.made.deallocate(self.live[-1][0][:])

    @rule(nbytes=st.sampled_from([0, 1, 4096]))
    def trim(self, nbytes):
        if hasattr(self.made, "trim"):
            before = self.below.used
            assert self.made.trim(nbytes) == before - self.below.used

    def teardown(self):
        assert all(not self.stack.reads or buffer.eq(mark).all() for buffer, mark in self.live)
        self.count()
        for buffer, _ in self.live:
            self.made.deallocate(buffer)
        self.live.clear()
        self.count()
        trimmed(self.made)
        assert self.below.used == 0

    def count(self):
        """Compares the counters with the model."""
        wanted = sum(buffer.numel() for buffer, _ in self.live)
        if hasattr(self.made, "counts"):
            counts = self.made.counts()
            assert counts.current_bytes == wanted == self.made.used_bytes
            assert counts.allocations - counts.deallocations == len(self.live)
            assert [o.nbytes for o in self.made.outstanding()] == [b.numel() for b, _ in self.live]
        if hasattr(self.made, "stats"):
            stats = self.made.stats()
            if stats.allocated_bytes is not None:
                assert wanted <= stats.allocated_bytes <= stats.reserved_bytes
                assert stats.reserved_bytes <= stats.max_reserved_bytes
                if self.stack.over:
                    assert stats.reserved_bytes == self.below.used


def run(name, examples, steps):
    machine = type("Model", (AllocatorModel,), {"stack": STACKS[name]})
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    how = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
        derandomize=True, suppress_health_check=slow,
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.parametrize("name", STACKS)
def test_an_allocator_agrees_with_its_model(name):
    run(name, 50, 40)


@pytest.mark.soak
@pytest.mark.parametrize("name", STACKS)
def test_an_allocator_agrees_with_its_model_for_long(name):
    run(name, 2000, 60)
