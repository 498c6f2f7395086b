from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory import KvBlocks


def test_blocks_come_in_order_and_the_last_freed_come_back_first():
    pool = KvBlocks(6, 16)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.free([2, 0])
    assert pool.allocate(3) == [2, 0, 4]
    assert pool.num_free == 1
    pool.free([3])
    pool.free([1])
    assert pool.allocate(3) == [1, 3, 5]


def test_exhaustion_takes_nothing_and_says_what_is_free():
    pool = KvBlocks(4, 16, bytes_per_block=1000)
    pool.allocate(3)
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(2)
    error = caught.value
    assert (error.requested_bytes, error.free_bytes, error.limit_bytes) == (2000, 1000, 4000)
    assert error.retryable
    assert pool.num_free == 1
    assert pool.allocate(1) == [3]


def test_more_than_the_whole_pool_is_not_worth_a_retry():
    with pytest.raises(OutOfMemory) as caught:
        KvBlocks(4, 16).allocate(5)
    assert not caught.value.retryable
    assert caught.value.free_bytes is None


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(MemoryFault):
        KvBlocks(-1, 16)
    with pytest.raises(MemoryFault):
        KvBlocks(1, 0)
    with pytest.raises(MemoryFault):
        KvBlocks(1, 16).allocate(-1)
    assert KvBlocks(0, 16).allocate(0) == []


@pytest.mark.parametrize("foreign", [4, -1, 1.0, "1", None])
def test_foreign_blocks_are_refused_everywhere(foreign):
    pool = KvBlocks(4, 16)
    pool.allocate(4)
    for call in (pool.share, pool.refcount):
        with pytest.raises(InvalidBuffer):
            call(foreign)
    for call in (
        lambda: pool.free([0, foreign]),
        lambda: pool.slots([0, foreign], 0, 32),
        lambda: pool.table([[0, foreign]]),
    ):
        with pytest.raises(InvalidBuffer):
            call()
    assert [pool.refcount(block) for block in range(4)] == [1, 1, 1, 1]
    assert pool.num_free == 0


def test_a_truth_value_is_no_block():
    pool = KvBlocks(2, 16)
    pool.allocate(2)
    for call in (pool.share, pool.refcount, lambda block: pool.free([block])):
        with pytest.raises(InvalidBuffer):
            call(True)


def test_a_double_free_changes_nothing():
    pool = KvBlocks(4, 16)
    pool.allocate(3)
    pool.share(1)
    for blocks in ([0, 1, 0], [0, 1, 1, 1], [2, 3]):
        with pytest.raises(InvalidBuffer):
            pool.free(blocks)
        assert [pool.refcount(block) for block in range(4)] == [1, 2, 1, 0]
        assert pool.num_free == 1
    pool.free([1, 1])
    assert pool.allocate(2) == [1, 3]


def test_a_shared_block_is_free_when_its_last_holder_frees_it():
    pool = KvBlocks(2, 16)
    (block,) = pool.allocate()
    pool.share(block)
    pool.free([block])
    assert (pool.refcount(block), pool.num_free) == (1, 1)
    pool.free([block])
    assert (pool.refcount(block), pool.num_free) == (0, 2)
    with pytest.raises(InvalidBuffer):
        pool.share(block)


@pytest.mark.parametrize("start", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_slots_are_block_times_size_plus_offset(start, count):
    pool = KvBlocks(8, 4)
    pool.allocate(8)
    blocks = [5, 2, 7]
    expected = [blocks[i // 4] * 4 + i % 4 for i in range(start, start + count)]
    slots = pool.slots(blocks, start, count)
    assert slots.dtype == torch.int64
    assert slots.shape == (count,)
    assert slots.tolist() == expected


def test_slots_beyond_the_blocks_are_refused_and_say_how_many_are_needed():
    pool = KvBlocks(8, 4)
    blocks = pool.allocate(2)
    with pytest.raises(MemoryFault, match="allocate 3 blocks"):
        pool.slots(blocks, 7, 2)
    with pytest.raises(MemoryFault):
        pool.slots(blocks, -1, 1)
    with pytest.raises(MemoryFault):
        pool.slots(blocks, 4, -1)


def test_slots_of_a_freed_block_are_refused_only_where_it_is_written():
    pool = KvBlocks(8, 4)
    blocks = pool.allocate(2)
    pool.free([blocks[0]])
    assert pool.slots(blocks, 4, 2).tolist() == [4, 5]
    with pytest.raises(InvalidBuffer):
        pool.slots(blocks, 3, 2)


def test_tables_are_padded_with_a_block_that_exists():
    pool = KvBlocks(8, 4)
    pool.allocate(8)
    table = pool.table([[3, 1, 2], [], [7]])
    assert table.dtype == torch.int32
    assert table.tolist() == [[3, 1, 2], [0, 0, 0], [7, 0, 0]]
    assert pool.table([[3]], max_blocks=2).tolist() == [[3, 0]]
    assert pool.table([]).shape == (0, 0)
    assert pool.table([[], []]).shape == (2, 0)
    with pytest.raises(MemoryFault):
        pool.table([[3, 1]], max_blocks=1)


def test_a_table_of_a_freed_block_is_refused():
    pool = KvBlocks(2, 4)
    pool.allocate(1)
    with pytest.raises(InvalidBuffer):
        pool.table([[0], [1]])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert KvBlocks(1, 16).blocks_for(tokens) == blocks


class AgainstAModel(RuleBasedStateMachine):
    """The model: the free blocks as a list in order of use, and a count of references."""

    @initialize(size=st.integers(0, 6))
    def start(self, size):
        self.pool = KvBlocks(size, 2, bytes_per_block=10)
        self.order = list(range(size))
        self.counts = dict.fromkeys(range(size), 0)

    @rule(n=st.integers(0, 7))
    def allocate(self, n):
        if n > len(self.order):
            with pytest.raises(OutOfMemory) as caught:
                self.pool.allocate(n)
            assert caught.value.requested_bytes == 10 * n
            assert caught.value.free_bytes == 10 * len(self.order)
            return
        expected, self.order = self.order[:n], self.order[n:]
        assert self.pool.allocate(n) == expected
        self.counts |= dict.fromkeys(expected, 1)

    @rule(block=st.integers(-1, 7))
    def share(self, block):
        if self.counts.get(block, 0):
            self.pool.share(block)
            self.counts[block] += 1
        else:
            with pytest.raises(InvalidBuffer):
                self.pool.share(block)

    @rule(blocks=st.lists(st.integers(-1, 7), max_size=5))
    def free(self, blocks):
        if any(blocks.count(block) > self.counts.get(block, 0) for block in blocks):
            with pytest.raises(InvalidBuffer):
                self.pool.free(blocks)
            return
        self.pool.free(blocks)
        ended = []
        for block in blocks:
            self.counts[block] -= 1
            if not self.counts[block]:
                ended.append(block)
        self.order = ended + self.order

    @invariant()
    def agrees(self):
        if not hasattr(self, "pool"):
            return
        assert self.pool.num_free == len(self.order)
        assert {b: self.pool.refcount(b) for b in self.counts} == self.counts
        assert sorted(self.order) == [b for b, n in self.counts.items() if not n]


AgainstAModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestAgainstAModel = AgainstAModel.TestCase
