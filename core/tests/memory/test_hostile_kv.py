"""Blocks, keys, leases and groups of sequences in the hands of somebody who errs."""

from __future__ import annotations

import pytest
import torch

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.caches import KvCaches
from trivet.memory.kv.groups import Group, KvGroups
from trivet.memory.kv.keys import first_parent, key_of, keys_of
from trivet.memory.kv.leases import Leases
from trivet.memory.layouts import BlockLayout, copy_blocks

ODD_SIZES = [-1, 1.5, float("nan"), float("inf"), "8", None, [8]]


class LyingKey(bytes):
    """Another hash each time, and equal to nobody."""

    __slots__ = ()
    count = 0

    def __hash__(self):
        LyingKey.count += 1
        return LyingKey.count

    def __eq__(self, other):
        return False


class RaisingKey(bytes):
    __slots__ = ()

    def __hash__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize("key", [
    None, "key", 5, ["key"], bytearray(16), LyingKey(16), RaisingKey(16)])  # fmt: skip
def test_a_key_that_is_none_is_refused_and_the_pool_goes_on(key):
    pool = KvBlocks(2, 1)
    (block,) = pool.allocate(1)
    with pytest.raises(MemoryFault, match="is no key"):
        pool.publish(block, key)
    pool.free([block])
    assert (pool.num_cached, pool.num_free) == (0, 2)
    assert len(pool.allocate(2)) == 2


@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_number_that_is_none_is_refused(size):
    for made in (lambda: KvBlocks(size, 1), lambda: KvBlocks(1, size)):
        with pytest.raises(MemoryFault, match="cannot be made"):
            made()
    pool = KvBlocks(2, 4)
    calls = [lambda: pool.allocate(size), lambda: pool.blocks_for(size),
             lambda: keys_of([1], size), lambda: Leases(pool).allocate("a", size)]  # fmt: skip
    if size is not None:
        calls += [lambda: KvBlocks(1, 1, bytes_per_block=size),
                  lambda: pool.table([[]], max_blocks=size)]  # fmt: skip
    for call in calls:
        with pytest.raises(MemoryFault):
            call()
    held = pool.allocate(1)
    for start, count in ((size, 1), (0, size)):
        with pytest.raises(MemoryFault):
            pool.slots(held, start, count)
    assert pool.num_free == 1


def test_a_pool_that_no_table_can_describe_is_refused():
    with pytest.raises(MemoryFault, match="at most"):
        KvBlocks(1 << 60, 16)


@pytest.mark.parametrize("tokens", [["a"], [1.5], [None], [1 << 64], [float("nan")], [[1]]])
def test_tokens_that_are_none_have_no_key(tokens):
    with pytest.raises(MemoryFault, match="have no key"):
        key_of(first_parent(), tokens)
    with pytest.raises(MemoryFault, match="have no key"):
        keys_of(tokens, 1)


@pytest.mark.parametrize("odd", ["text", 5, bytes(65), [b"a"]])
def test_a_parent_or_salt_that_is_none_is_refused(odd):
    with pytest.raises(MemoryFault):
        key_of(odd, [1])
    if not isinstance(odd, bytes):
        with pytest.raises(MemoryFault, match="is no salt"):
            keys_of([1], 1, salt=odd)


def test_an_attempt_that_fails_gives_back_what_it_took_whatever_was_freed_meanwhile():
    leases = Leases(KvBlocks(8, 1))
    first = leases.allocate("a", 2)

    def step():
        with leases.attempt():
            leases.free("a", first[:1])
            leases.allocate("a", 1)  # the very number that was freed
            leases.allocate("b", 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert (leases.held("a"), leases.held("b")) == (first[1:], [])
    assert leases.pool.num_free == 7


def test_attempts_within_attempts_each_give_back_their_own():
    leases = Leases(KvBlocks(8, 1))

    def inner():
        with leases.attempt():
            leases.allocate("a", 2)
            raise ZeroDivisionError

    def outer():
        with leases.attempt():
            leases.allocate("a", 1)
            with pytest.raises(ZeroDivisionError):
                inner()
            assert len(leases.held("a")) == 1
            with leases.attempt():
                leases.allocate("b", 1)
            raise KeyError

    with pytest.raises(KeyError):
        outer()
    assert (leases.owners, leases.pool.num_free) == ([], 8)
    leases.allocate("a", 1)
    assert leases.pool.num_free == 7


def test_a_block_that_was_given_back_past_its_owner_does_not_hide_what_failed():
    leases = Leases(KvBlocks(8, 1))

    def step():
        with leases.attempt():
            (block,) = leases.allocate("a", 1)
            leases.allocate("b", 3)
            leases.pool.free([block])
            raise ZeroDivisionError("first")

    with pytest.raises(ZeroDivisionError, match="first") as caught:
        step()
    assert "was not held any more" in caught.value.__notes__[0]
    assert leases.pool.num_free == 8
    assert leases.held("b") == []


def groups(**made):
    return KvGroups(made or {"all": Group(4), "window": Group(4, window=4)}, block_bytes=16,
                    budget_bytes=16 * 20)  # fmt: skip


def test_a_sequence_is_ended_once_and_known_by_name():
    made = groups()
    made.extend("a", 8)
    made.end("a")
    for call in (lambda: made.end("a"), lambda: made.advance("a", 1),
                 lambda: made.blocks("a", "all"), lambda: made.publish("a", [1, 2])):  # fmt: skip
        with pytest.raises(InvalidBuffer, match="there is no sequence 'a'"):
            call()
    made.extend("a", 8)
    with pytest.raises(MemoryFault, match="there is no group 'none'"):
        made.blocks("a", "none")
    assert made.pool.num_free == 16


def test_a_sequence_that_holds_blocks_is_not_adopted_over_them():
    made = groups()
    made.extend("a", 8)
    with pytest.raises(InvalidBuffer, match="holds blocks already"):
        made.adopt("a", list(range(8)))
    made.end("a")
    assert made.pool.num_free == 20


@pytest.mark.parametrize("size", ODD_SIZES)
def test_groups_of_sizes_that_are_none_are_refused(size):
    for call in (lambda: groups().extend("a", size), lambda: groups().extend("a", 1, fixed=size),
                 lambda: groups(all=Group(size)), lambda: groups(all=Group(4, window=size)),
                 lambda: KvGroups({"a": Group(4)}, block_bytes=size, budget_bytes=64),
                 lambda: KvGroups({"a": Group(4)}, block_bytes=16, budget_bytes=size)):  # fmt: skip
        with pytest.raises(MemoryFault):
            call()
    with pytest.raises(MemoryFault):
        KvGroups({"a": Group(4)}, block_bytes=0, budget_bytes=64)
    made = groups()
    made.extend("a", 8)
    with pytest.raises(MemoryFault):
        made.advance("a", size)
    made.end("a")


def test_groups_that_keep_nothing_of_tokens_have_no_prefix():
    made = groups(encoder=Group(4, fixed=True))
    assert made.find(list(range(100))) == 0
    assert made.adopt("a", list(range(100))) == 0


def test_released_caches_are_no_empty_caches():
    caches = KvCaches(((torch.zeros(1), torch.zeros(1)),), lambda: None)
    assert len(list(caches)) == 1
    caches.release()
    for call in (lambda: caches[0], lambda: list(caches)):
        with pytest.raises(InvalidBuffer, match="were released"):
            call()


@pytest.mark.parametrize("blocks", [[0.5], [True], ["0"], [None], [float("nan")], [-1], [2]])
def test_block_numbers_that_are_none_are_not_copied(blocks):
    layout = BlockLayout(1, 1, 2, torch.float32)
    source, target = torch.ones(2, 1, 1, 2), torch.zeros(2, 1, 1, 2)
    for pair in ((blocks, [0]), ([0], blocks)):
        with pytest.raises(MemoryFault, match="are not in the"):
            copy_blocks(source, layout, pair[0], target, layout, pair[1])
    assert not target.any()


@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(scale):
    good, odd = (
        BlockLayout(1, 1, 2, torch.float32),
        BlockLayout(1, 1, 2, torch.float32, scale=scale),
    )
    cache = torch.ones(2, 1, 1, 2)
    for pair in ((good, odd), (odd, good)):
        with pytest.raises(MemoryFault, match="the scale of the"):
            copy_blocks(cache, pair[0], [0], cache, pair[1], [1])


def test_a_callback_that_raises_evicts_nothing():
    def refuse(victims):
        raise ZeroDivisionError

    pool = KvBlocks(2, 1, on_evict=refuse)
    for block, key in zip(pool.allocate(2), keys_of([1, 2], 1), strict=True):
        pool.publish(block, key)
        pool.free([block])
    with pytest.raises(ZeroDivisionError):
        pool.allocate(1)
    assert (pool.num_cached, pool.num_free) == (2, 2)
    with pytest.raises(OutOfMemory):
        pool.allocate(3)
