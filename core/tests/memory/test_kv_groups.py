"""Owners of blocks, and groups of layers that share one budget."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory import KvBlocks
from trivet.memory.kv.groups import Group, KvGroups
from trivet.memory.kv.keys import keys_of
from trivet.memory.kv.leases import Leases


def test_a_step_that_fails_gives_back_what_it_took_for_every_owner():
    pool = KvBlocks(6, 2)
    leases = Leases(pool)
    kept = leases.allocate("a", 1)

    def step():
        with leases.attempt():
            leases.allocate("a", 2)
            leases.allocate("b", 1)
            leases.allocate("b", 9)

    with pytest.raises(OutOfMemory):
        step()
    assert (leases.held("a"), leases.held("b"), leases.owners) == (kept, [], ["a"])
    assert pool.num_free == 5
    with leases.attempt():
        leases.allocate("a", 2)
    assert len(leases.held("a")) == 3
    leases.free("a")
    assert (pool.num_free, leases.owners) == (6, [])


def test_a_shared_prefix_has_two_owners():
    pool = KvBlocks(4, 2)
    leases = Leases(pool)
    keys = keys_of(range(4), 2)
    blocks = leases.allocate("a", 2)
    for block, key in zip(blocks, keys, strict=True):
        pool.publish(block, key)
    assert leases.take("b", keys) == blocks
    leases.free("a")
    assert pool.num_free == 2
    with pytest.raises(InvalidBuffer, match="'a' does not hold block 0"):
        leases.free("a", blocks)
    leases.free("b", blocks[:1])
    assert leases.held("b") == blocks[1:]


MIXED = {
    "full": Group(bytes_per_token=32),
    "window": Group(bytes_per_token=16, window=5),
    "latent": Group(bytes_per_token=8),
    "cross": Group(bytes_per_token=64, fixed=True),
}


def mixed(blocks=40):
    return KvGroups(MIXED, block_bytes=64, budget_bytes=64 * blocks)


def test_groups_take_blocks_of_equal_bytes_from_one_budget():
    groups = mixed()
    assert groups.block_sizes == {"full": 2, "window": 4, "latent": 8, "cross": 1}
    groups.extend("s", 9, fixed=3)
    assert {n: len(groups.blocks("s", n)) for n in MIXED} == {
        "full": 5,
        "window": 3,
        "latent": 2,
        "cross": 3,
    }
    assert groups.pool.num_free == 40 - 13
    groups.extend("s", 10, fixed=3)
    assert groups.pool.num_free == 27
    groups.end("s")
    assert groups.pool.num_free == 40


def test_one_group_that_does_not_fit_takes_nothing_in_any():
    groups = mixed(blocks=12)
    with pytest.raises(OutOfMemory):
        groups.extend("s", 9, fixed=3)
    assert groups.pool.num_free == 12
    groups.extend("s", 9, fixed=2)
    assert groups.pool.num_free == 0


def test_a_window_gives_back_what_it_has_passed():
    groups = mixed()
    groups.extend("s", 12)
    assert groups.advance("s", 7) == 0
    first, second, third = groups.blocks("s", "window")
    assert groups.advance("s", 8) == 1  # the next query sees 4 to 8
    assert groups.blocks("s", "window") == [0, second, third]
    assert groups.pool.refcount(first) == 0
    assert groups.advance("s", 12) == 1
    assert groups.advance("s", 12) == 0
    groups.end("s")
    assert groups.pool.num_free == 40


def test_a_prefix_is_reused_as_far_as_every_group_still_has_it():
    groups = mixed()
    tokens = list(range(20))
    groups.extend("a", 20)
    groups.advance("a", 20)  # of the window, tokens from 16 on are left
    groups.publish("a", tokens)
    assert groups.find(tokens) == 0  # at most 16 could be reused, and 12 to 15 are gone
    groups.end("a")
    groups.extend("b", 20)
    groups.publish("b", tokens)
    assert groups.find(tokens) == 16
    assert groups.find(tokens[:9]) == 8
    assert groups.find(tokens[:8]) == 0  # one token must be computed
    assert groups.find(tokens, salt=b"other") == 0
    assert groups.adopt("c", tokens) == 16
    keys = keys_of(tokens[:16], 2, salt=b"full\0")
    assert groups.blocks("c", "full") == groups.pool.find(keys)  # those of "a", cached first
    assert groups.blocks("c", "window") == [0, 0, 0, groups.blocks("b", "window")[3]]
    groups.extend("c", 20)
    assert len(groups.blocks("c", "full")) == 10
    groups.end("b")
    groups.end("c")
    assert groups.pool.num_free == 40


@pytest.mark.parametrize(("groups", "text"), [({}, "no group"), ({"a": Group(48)}, "do not fill")])
def test_groups_that_do_not_fit_a_block_are_refused(groups, text):
    with pytest.raises(MemoryFault, match=text):
        KvGroups(groups, block_bytes=64, budget_bytes=640)


class GroupsAgainstAModel(RuleBasedStateMachine):
    """The model: how many blocks each sequence must have."""

    def __init__(self):
        super().__init__()
        self.groups = mixed(blocks=30)
        self.lengths, self.done = {}, {}

    @rule(name=st.integers(0, 3), more=st.integers(0, 9), fixed=st.integers(0, 3))
    def extend(self, name, more, fixed):
        length, fixed = self.lengths.get(name, (0, fixed))
        before = self.groups.pool.num_free
        try:
            self.groups.extend(name, length + more, fixed=fixed)
        except OutOfMemory:
            assert self.groups.pool.num_free == before
            return
        self.lengths[name] = length + more, fixed

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def advance(self, data):
        name = data.draw(st.sampled_from(sorted(self.lengths)))
        done = data.draw(st.integers(self.done.get(name, 0), self.lengths[name][0]))
        self.groups.advance(name, done)
        self.done[name] = done

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def end(self, data):
        name = data.draw(st.sampled_from(sorted(self.lengths)))
        self.groups.end(name)
        del self.lengths[name]
        self.done.pop(name, None)

    @invariant()
    def holds_what_it_must(self):
        held = []
        for name, (length, fixed) in self.lengths.items():
            for group, size in self.groups.block_sizes.items():
                blocks = self.groups.blocks(name, group)
                have = fixed if MIXED[group].fixed else length
                assert len(blocks) == -(-have // size)
                window = MIXED[group].window
                first = max(0, self.done.get(name, 0) - window + 1) // size if window else 0
                held += blocks[min(first, len(blocks)) :]
        assert len(set(held)) == len(held)
        assert self.groups.pool.num_free == 30 - len(held)


GroupsAgainstAModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestGroupsAgainstAModel = GroupsAgainstAModel.TestCase
