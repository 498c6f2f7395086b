"""Blocks found by content: keys, sharing, copy on write, eviction and events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory import KvBlocks
from trivet.memory.kv.events import Cleared, Removed, Stored
from trivet.memory.kv.keys import first_parent, key_of, keys_of


def test_a_key_depends_on_every_token_before_it_and_on_the_salt():
    tokens = list(range(12))
    keys = keys_of(tokens, 4)
    assert len(set(keys)) == 3
    assert keys_of([*tokens, 99], 4) == keys
    assert keys_of([7, *tokens[1:]], 4)[2] != keys[2]
    assert keys_of(tokens, 4, salt=b"lora") != keys
    assert keys_of(tokens[4:], 4, parent=keys[0]) == keys[1:]
    assert key_of(first_parent(), tokens[:4]) == keys[0]
    assert key_of(keys[0], tokens[4:6]) != keys[1]  # a partial block is another block
    assert {len(k) for k in keys} == {16}


def cached(pool, tokens):
    """A finished sequence: its blocks, which can be found and are free."""
    keys = keys_of(tokens, pool.block_size)
    blocks = pool.allocate(pool.blocks_for(len(tokens)))
    for block, key in zip(blocks, keys, strict=False):
        pool.publish(block, key)
    pool.free(reversed(blocks))
    return blocks, keys


def test_a_prefix_is_found_taken_and_given_back():
    pool = KvBlocks(8, 4)
    blocks, keys = cached(pool, range(10))
    assert (pool.num_free, pool.num_cached) == (8, 2)
    assert pool.find(keys_of([*range(8), 50, 51, 52, 53], 4)) == blocks[:2]
    assert pool.take(keys) == blocks[:2]
    assert [pool.refcount(b) for b in blocks] == [1, 1, 0]
    assert pool.take(keys) == blocks[:2]
    pool.free(blocks[:2])
    assert pool.num_free == 6
    assert pool.find(keys[1:]) == blocks[1:2]
    assert pool.find([b"?" * 16, *keys]) == []


def test_empty_blocks_go_first_and_the_end_of_a_sequence_is_evicted_before_its_start():
    told = []
    pool = KvBlocks(4, 2, on_evict=told.extend)
    blocks, keys = cached(pool, range(6))
    assert pool.allocate(1) == [3]
    assert told == []
    assert pool.allocate(1) == blocks[2:]
    assert told == [(keys[2], blocks[2])]
    assert pool.find(keys) == blocks[:2]
    assert pool.allocate(2) == [blocks[1], blocks[0]]
    assert pool.find(keys) == []
    with pytest.raises(OutOfMemory):
        pool.allocate(1)


def test_what_was_used_again_is_evicted_last():
    pool = KvBlocks(4, 2)
    first, keys = cached(pool, range(4))
    second, _ = cached(pool, range(10, 14))
    pool.free(reversed(pool.take(keys)))
    assert pool.allocate(2) == [second[1], second[0]]
    assert pool.find(keys) == first


def test_a_block_that_others_see_is_copied_before_it_is_written():
    pool = KvBlocks(4, 2)
    (own,) = pool.allocate(1)
    assert pool.writable(own) == (own, False)
    pool.share(own)
    new, copied = pool.writable(own)
    assert (new != own, copied, pool.refcount(own), pool.refcount(new)) == (True, True, 1, 1)
    pool.publish(own, b"k" * 16)
    moved, copied = pool.writable(own)  # found by its key: its contents stay as they are
    assert copied
    assert pool.find([b"k" * 16]) == [own]
    pool.allocate(1)
    pool.allocate(1)
    with pytest.raises(OutOfMemory):
        pool.share(moved) or pool.writable(moved)
    assert pool.refcount(moved) == 2


def test_two_blocks_with_one_key_and_one_with_two():
    pool = KvBlocks(3, 2)
    a, b, _ = pool.allocate(3)
    pool.publish(a, b"k" * 16)
    pool.publish(a, b"k" * 16)
    pool.publish(b, b"k" * 16)
    assert (pool.find([b"k" * 16]), pool.num_cached) == ([a], 1)
    with pytest.raises(InvalidBuffer, match="under another key"):
        pool.publish(a, b"l" * 16)
    pool.free([b])
    with pytest.raises(InvalidBuffer, match="is free"):
        pool.publish(b, b"m" * 16)
    assert pool.allocate(1) == [b]  # it was not cached, so it is empty


def test_events_tell_an_outside_cache_what_can_be_found():
    pool = KvBlocks(2, 2, keep_events=True)
    blocks, keys = cached(pool, range(4))
    pool.allocate(1)
    assert pool.forget() == 1
    assert pool.drain_events() == [
        Stored(keys[0], blocks[0]),
        Stored(keys[1], blocks[1]),
        Removed(keys[1], blocks[1]),
        Cleared(),
    ]
    assert pool.drain_events() == []
    assert pool.allocate(1) == blocks[:1]  # what is forgotten is empty, not lost
    with pytest.raises(MemoryFault, match="keep_events"):
        KvBlocks(1, 1).drain_events()


def test_contents_are_dropped_block_by_block_too():
    pool = KvBlocks(3, 2)
    blocks, keys = cached(pool, range(4))
    pool.take(keys[:1])
    assert pool.forget(blocks) == 2
    assert (pool.num_cached, pool.num_free, pool.refcount(blocks[0])) == (0, 2, 1)
    pool.free(blocks[:1])
    assert pool.num_free == 3
    assert sorted(pool.allocate(3)) == [0, 1, 2]


KEYS = [bytes([i]) * 16 for i in range(5)]


class ContentsAgainstAModel(RuleBasedStateMachine):
    """The model: what is written in each block, which a key must lead back to."""

    @initialize(size=st.integers(1, 6))
    def start(self, size):
        self.pool = KvBlocks(size, 2, on_evict=self.evicted, keep_events=True)
        self.counts = dict.fromkeys(range(size), 0)
        self.written = dict.fromkeys(range(size))
        self.outside = {}

    def evicted(self, victims):
        for key, block in victims:
            assert self.counts[block] == 0
            assert self.written[block] == key

    @rule(n=st.integers(0, 7))
    def allocate(self, n):
        free = sum(not c for c in self.counts.values())
        assert self.pool.num_free == free
        if n > free:
            with pytest.raises(OutOfMemory):
                self.pool.allocate(n)
            return
        taken = self.pool.allocate(n)
        assert len(set(taken)) == n
        for block in taken:
            assert not self.counts[block]
            self.counts[block], self.written[block] = 1, None

    @rule(block=st.integers(0, 5), key=st.sampled_from(KEYS))
    def write_and_publish(self, block, key):
        if self.counts.get(block) and self.written[block] in {None, key}:
            self.written[block] = key
            self.pool.publish(block, key)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True))
    def take(self, keys):
        found = self.pool.take(keys)
        assert [self.written[b] for b in found] == keys[: len(found)]
        for block in found:
            self.counts[block] += 1

    @rule(block=st.integers(0, 5))
    def write_again(self, block):
        if not self.counts.get(block):
            return
        try:
            new, copied = self.pool.writable(block)
        except OutOfMemory:
            assert not self.pool.num_free
            return
        if copied:
            self.counts[block] -= 1
            self.counts[new] = 1
        self.written[new] = None

    @rule(blocks=st.lists(st.integers(0, 5), max_size=4))
    def free(self, blocks):
        if any(blocks.count(b) > self.counts.get(b, 0) for b in blocks):
            with pytest.raises(InvalidBuffer):
                self.pool.free(blocks)
            return
        self.pool.free(blocks)
        for block in blocks:
            self.counts[block] -= 1

    @rule(blocks=st.none() | st.lists(st.integers(0, 5), max_size=3, unique=True))
    def forget(self, blocks):
        self.pool.forget(blocks)

    @invariant()
    def agrees(self):
        if not hasattr(self, "pool"):
            return
        assert {b: self.pool.refcount(b) for b in self.counts} == self.counts
        assert self.pool.num_free == sum(not c for c in self.counts.values())
        for event in self.pool.drain_events():
            if isinstance(event, Stored):
                self.outside[event.key] = event.block
            elif isinstance(event, Removed):
                assert self.outside.pop(event.key) == event.block
            else:
                self.outside.clear()
        inside = {k: b for k in KEYS for b in self.pool.find([k])}
        assert inside == self.outside
        assert len(inside) == self.pool.num_cached
        assert all(self.written[b] == k for k, b in inside.items())


ContentsAgainstAModel.TestCase.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestContentsAgainstAModel = ContentsAgainstAModel.TestCase


@pytest.mark.soak
def test_contents_against_a_model_for_long():
    from hypothesis.stateful import run_state_machine_as_test

    long = settings(max_examples=2000, stateful_step_count=60, deadline=None, database=None)
    run_state_machine_as_test(ContentsAgainstAModel, settings=long)


def test_blocks_of_no_tokens_have_no_keys():
    with pytest.raises(MemoryFault, match="blocks of 0 tokens"):
        keys_of([1, 2], 0)
