"""Prefix blocks that outlast their eviction, against a model of what was written."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import trivet.memory
from trivet.contracts.memory import Tier
from trivet.errors import DataCorrupt, MemoryFault, NotResident
from trivet.memory import KvBlocks
from trivet.memory.kv.keys import keys_of
from trivet.memory.migrate import Mover
from trivet.memory.spill import Spill

CPU = torch.device("cpu")
BLOCK = 2  # tokens in a block


class Engine:
    """A pool with caches of two layers; the contents of a block are a function of its key."""

    def __init__(self, folder, blocks=4, host=3, disk=0, mover=None):
        self.pool = KvBlocks(blocks, BLOCK)
        self.memory = trivet.memory.open(CPU)
        self.caches = self.memory.kv_caches(2, blocks, BLOCK, 1, 4, torch.bfloat16)
        tensors = [t for pair in self.caches for t in pair]
        size = sum(t[0].nbytes for t in tensors) if blocks else 0
        self.spill = Spill(
            self.pool, self.caches, host_bytes=host * size, disk_bytes=disk * size, folder=folder,
            mover=mover,
        )  # fmt: skip

    def contents(self, key, i):
        seed = int.from_bytes(key[:4], "little") + i
        made = torch.randn(BLOCK, 1, 4, generator=torch.Generator().manual_seed(seed))
        return made.to(torch.bfloat16)

    def tensors(self):
        return [t for pair in self.caches for t in pair]

    def right(self, key, block):
        return all(
            torch.equal(t[block], self.contents(key, i)) for i, t in enumerate(self.tensors())
        )

    def sequence(self, tokens):
        """Runs a sequence to its end; how many of its blocks need not be computed."""
        keys = keys_of(tokens, BLOCK)
        blocks = self.spill.fetch(keys)
        found = len(blocks)
        for key, block in zip(keys, blocks, strict=False):
            assert self.right(key, block), "wrong contents came back"
        new = self.pool.allocate(min(len(keys) - found, self.pool.num_free))
        for t in self.tensors():
            t[new] = float("nan")  # what was there is overwritten at once
        for key, block in zip(keys[found:], new, strict=False):
            for i, t in enumerate(self.tensors()):
                t[block] = self.contents(key, i)
            self.pool.publish(block, key)
        self.pool.free(reversed([*blocks, *new]))
        return found


def test_what_was_evicted_is_found_again_on_the_host(tmp_path):
    engine = Engine(tmp_path)
    assert engine.sequence(range(6)) == 0
    assert engine.sequence(range(10, 18)) == 0  # takes every block
    assert engine.pool.find(keys_of(range(6), BLOCK)) == []
    assert engine.spill.find(keys_of(range(6), BLOCK)) == 3
    assert engine.sequence(range(6)) == 3
    stats = engine.spill.stats
    assert (stats.spilled, stats.from_host, stats.to_disk) == (6, 3, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("disk", [0, 2])
def test_what_was_used_last_is_dropped_last(tmp_path, disk):
    engine = Engine(tmp_path, blocks=1, host=2 if not disk else 1, disk=disk)
    a, b, c, d = [0, 1], [2, 3], [4, 5], [6, 7]
    for tokens in (a, b, c) if not disk else (a, b, c, d):
        engine.sequence(tokens)
    assert engine.sequence(a) == 1  # from the host, or from disk; evicts the newest one
    kept = [keys_of(t, BLOCK)[0] in engine.spill for t in (a, b, c, d)]
    assert kept == ([True, False, True, False] if not disk else [True, False, True, True])


def test_what_the_host_has_no_room_for_goes_to_disk_and_the_last_tier_forgets(tmp_path):
    engine = Engine(tmp_path, blocks=2, host=1, disk=2)
    for start in range(0, 50, 10):
        engine.sequence(range(start, start + 4))
    stats = engine.spill.stats
    assert len(engine.spill) == 3
    assert (stats.spilled, stats.to_disk, stats.dropped) == (8, 7, 5)
    assert engine.sequence(range(30, 34)) == 2
    assert stats.from_disk >= 1
    files = engine.spill._files
    assert len(list(files.folder.iterdir())) <= 2
    engine.spill.close()
    engine.spill.close()
    assert list(tmp_path.iterdir()) == []
    assert engine.pool.on_evict is None
    engine.sequence(range(4))


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_file_is_told_once_and_its_block_is_computed_again(tmp_path, damage, caplog):
    engine = Engine(tmp_path, blocks=3, host=1, disk=9)
    for start in (0, 10, 20, 30):
        engine.sequence(range(start, start + 6))
    for path in engine.spill._files.folder.iterdir():
        whole = bytearray(path.read_bytes())
        if damage == "gone":
            path.unlink()
        else:
            whole[-1] ^= 255
            path.write_bytes(whole[:-1] if damage == "cut" else whole)
    with caplog.at_level(logging.WARNING, "trivet.memory"):
        assert engine.sequence(range(6)) == 0
        assert engine.sequence(range(10, 16)) == 0
    stats = engine.spill.stats
    assert (stats.corrupt, stats.failed) == ((0, 2) if damage == "gone" else (2, 0))
    assert isinstance(stats.last_error, FileNotFoundError if damage == "gone" else DataCorrupt)
    assert len(caplog.records) == 1
    assert ".block" in caplog.text
    assert stats.to_json()["last_error"]
    names = {path.stem for path in engine.spill._files.folder.iterdir()}
    listed = {key.hex() for key in engine.spill._on_disk}
    assert names == listed or (damage == "gone" and names < listed)  # some were not asked for yet
    assert engine.sequence(range(10, 16)) == 3


def test_a_damaged_block_in_the_middle_ends_the_run_there(tmp_path):
    engine = Engine(tmp_path, blocks=4, host=1, disk=9)
    engine.sequence(range(8))
    engine.sequence(range(10, 18))
    engine.sequence(range(20, 28))
    keys = keys_of(range(8), BLOCK)
    assert engine.spill.find(keys) == 4
    engine.spill._files.path(keys[2].hex()).write_bytes(b"no")
    assert engine.sequence(range(8)) == 2
    assert engine.pool.num_free == 4


class Broken(Mover):
    def __init__(self):
        super().__init__()
        self.fails = set()

    def prepare(self, copies, source, target):
        if (source, target) in self.fails:
            raise MemoryFault("the bus is gone")
        return super().prepare(copies, source, target)


def test_a_spill_that_fails_never_fails_the_pools_call(tmp_path, caplog):
    mover = Broken()
    mover.fails = {(Tier.HOST, Tier.HOST)}
    engine = Engine(tmp_path, mover=mover)
    engine.sequence(range(8))
    engine.sequence(range(10, 18))
    engine.sequence(range(20, 28))
    assert (engine.spill.stats.failed, engine.spill.stats.dropped) == (6, 2)
    assert len(engine.spill) == 0
    assert len(caplog.records) == 1
    mover.fails.clear()
    engine.sequence(range(8))
    assert engine.spill.stats.spilled == 3


def test_caches_that_sleep_are_not_touched_and_what_was_spilled_is_there_when_they_wake(tmp_path):
    engine = Engine(tmp_path, host=9)
    engine.sequence(range(8))
    engine.sequence(range(10, 18))
    keys = keys_of(range(8), BLOCK)
    engine.memory.sleeper.contents(engine.pool)
    engine.memory.sleep(discard=["kv_cache"])
    assert engine.spill.fetch(keys) == []
    assert isinstance(engine.spill.stats.last_error, NotResident)
    assert engine.pool.num_free == 4
    engine.memory.wake()
    assert engine.sequence(range(8)) == 4  # the device lost it, the host did not


def test_fetch_gives_everything_back_when_it_fails(tmp_path, monkeypatch):
    engine = Engine(tmp_path)
    engine.sequence(range(8))
    engine.sequence(range(10, 14))
    monkeypatch.setattr(engine.spill, "_read", lambda keys: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.spill.fetch(keys_of(range(8), BLOCK))
    assert engine.pool.num_free == 4


def test_fetch_takes_no_more_blocks_than_it_may(tmp_path):
    engine = Engine(tmp_path, host=9)
    engine.sequence(range(8))
    engine.sequence(range(10, 18))
    keys = keys_of(range(8), BLOCK)
    held = engine.spill.fetch(keys, most=2)
    assert [engine.right(k, b) for k, b in zip(keys, held, strict=False)] == [True, True]
    engine.pool.allocate(1)
    more = engine.spill.fetch(keys)
    assert more[:2] == held
    assert len(more) == 3  # one block was free
    with pytest.raises(MemoryFault, match="listed twice"):
        engine.spill.fetch([keys[0], keys[0]])


def test_what_does_not_fit_is_refused(tmp_path):
    engine = Engine(tmp_path)
    tensors = engine.tensors()
    for pool, made, host in ((engine.pool, tensors, 1 << 20), (KvBlocks(9, 2), tensors, 1 << 20),
                             (KvBlocks(4, 2), [], 1 << 20), (KvBlocks(4, 2), tensors, 63),
                             (KvBlocks(4, 2), [tensors[0][..., ::2]], 1 << 20)):  # fmt: skip
        with pytest.raises(MemoryFault):
            Spill(pool, made, host_bytes=host, folder=tmp_path)


class SpillAgainstAModel(RuleBasedStateMachine):
    """Every sequence gets right contents, budgets hold, and nothing is lost without a count."""

    @initialize(blocks=st.integers(1, 5), host=st.integers(1, 4), disk=st.integers(0, 5))
    def start(self, blocks, host, disk):
        self.engine = Engine(None, blocks, host, disk)
        self.seen, self.damaged, self.held = set(), set(), []

    @rule(first=st.integers(0, 2), second=st.integers(0, 2), length=st.integers(1, 5))
    def sequence(self, first, second, length):
        tokens = [first, first, second, second, *range(2 * length)][: 2 * length]
        engine, spill = self.engine, self.engine.spill
        keys = keys_of(tokens, BLOCK)
        there = min(spill.find(keys), engine.pool.num_free)
        found = engine.sequence(tokens)
        assert found >= there or self.damaged & {key.hex() for key in keys}
        self.seen.update(k for k in keys if engine.pool.find([k]))

    @rule(n=st.integers(0, 2))
    def hold(self, n):
        if n <= self.engine.pool.num_free:
            self.held += self.engine.pool.allocate(n)

    @rule()
    def let_go(self):
        self.engine.pool.free(self.held)
        self.held = []

    @rule(which=st.integers(0, 9), keep=st.integers(0, 60))
    def damage(self, which, keep):
        files = self.engine.spill._files
        paths = sorted(files.folder.iterdir()) if files else []
        if which < len(paths):
            paths[which].write_bytes(paths[which].read_bytes()[:keep])
            self.damaged.add(paths[which].stem)

    @rule()
    def forget(self):
        self.engine.spill.forget()
        self.engine.pool.forget()
        self.seen = set()

    @invariant()
    def budgets_hold_and_nothing_is_lost(self):
        if not hasattr(self, "engine"):
            return
        spill, pool = self.engine.spill, self.engine.pool
        assert len(spill._on_host) <= spill.host_blocks
        assert len(spill._on_disk) <= spill.disk_blocks
        assert not spill._on_host.keys() & spill._on_disk.keys()
        assert pool.num_free + len(self.held) == pool.num_blocks
        if spill._files:
            names = {p.stem for p in spill._files.folder.iterdir()}
            assert names == {key.hex() for key in spill._on_disk}
            self.damaged &= names
        lost = [k for k in self.seen if k not in spill and not pool.find([k])]
        counted = spill.stats.dropped + spill.stats.corrupt + spill.stats.failed
        assert not lost or counted

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.spill.close()


SpillAgainstAModel.TestCase.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestSpillAgainstAModel = SpillAgainstAModel.TestCase


@pytest.mark.soak
def test_spill_against_a_model_for_long():
    from hypothesis.stateful import run_state_machine_as_test

    long = settings(max_examples=2000, stateful_step_count=60, deadline=None, database=None)
    run_state_machine_as_test(SpillAgainstAModel, settings=long)
