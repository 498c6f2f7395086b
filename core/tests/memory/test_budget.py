"""Limits, who gives way, and who is told: against plain lists, and a model."""

from __future__ import annotations

import gc
import logging
import threading

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trivet.contracts.memory import MemoryInfo
from trivet.errors import ConfigError, MemoryFault, OutOfMemory
from trivet.memory import Budget, DeviceMemory, Ledger
from trivet.memory.holdings import holdings

CPU = torch.device("cpu")


def budget(hard: int | None = None, soft: int | None = None) -> tuple[Ledger, Budget]:
    ledger = Ledger()
    made = Budget(ledger)
    made.hard_bytes, made.soft_bytes = hard, soft
    return ledger, made


class Cache:
    """Tokens that it releases one by one when it is asked."""

    def __init__(self, ledger: Ledger, *sizes: int) -> None:
        self.tokens = [ledger.account(n, "cache") for n in sizes]
        self.asked: list[int] = []

    def release(self, wanted: int) -> int:
        self.asked.append(wanted)
        given = 0
        while self.tokens and given < wanted:
            token = self.tokens.pop()
            given += token.nbytes
            token.release()
        return given


def test_the_lower_priority_gives_way_first_and_no_more_than_is_wanted():
    ledger, limits = budget(hard=100)
    late, first = Cache(ledger, 30, 30), Cache(ledger, 20, 20)
    limits.register_reclaimable("late", 10, late.release)
    limits.register_reclaimable("first", 1, first.release)
    ledger.account(30, "new")
    assert (first.asked, late.asked) == ([30], [])
    ledger.account(50, "new")
    assert (first.asked, late.asked) == ([30, 40], [40])
    assert ledger.by_tag() == {"new": 80}


def test_what_still_does_not_fit_is_refused_and_says_who_was_asked():
    ledger, limits = budget(hard=100)
    cache = Cache(ledger, 10)
    limits.register_reclaimable("prefixes", 1, cache.release)
    ledger.account(60, "weights")
    with pytest.raises(OutOfMemory) as refused:
        ledger.account(200, "new")
    assert "prefixes gave 0 bytes" in refused.value.__notes__[0]
    assert ledger.by_tag() == {"weights": 60}


def test_one_that_claims_and_gives_nothing_ends_in_a_bounded_number_of_calls():
    ledger, limits = budget(hard=10)
    asked: list[int] = []
    limits.register_reclaimable("liar", 1, lambda n: asked.append(n) or n)
    with pytest.raises(OutOfMemory):
        ledger.account(11)
    assert 1 <= len(asked) <= 4


def test_where_the_limit_was_lowered_enough_is_asked_for_at_once():
    ledger, limits = budget()
    cache = Cache(ledger, *[1] * 20)
    limits.register_reclaimable("cache", 1, cache.release)
    limits.hard_bytes = 1
    ledger.account(1, "new")
    assert cache.asked == [20]


def test_one_that_raises_is_named_and_the_next_one_is_asked(caplog):
    ledger, limits = budget(hard=10)
    cache = Cache(ledger, 10)
    limits.register_reclaimable("broken", 1, lambda _: 1 // 0)
    limits.register_reclaimable("cache", 2, cache.release)
    ledger.account(10, "new")
    assert ledger.by_tag() == {"new": 10}
    assert "broken was asked for 10 bytes and raised" in caplog.text


def test_a_callback_may_account_and_is_not_asked_by_itself():
    ledger, limits = budget(hard=10)
    cache = Cache(ledger, 8)

    def release(wanted: int) -> int:
        with pytest.raises(OutOfMemory):
            ledger.account(100)
        return cache.release(wanted)

    limits.register_reclaimable("nested", 1, release)
    ledger.account(9)
    assert cache.asked == [7]


def test_callbacks_run_outside_of_every_lock():
    ledger, limits = budget(hard=10)
    cache = Cache(ledger, 10)
    seen: list[int] = []

    def release(wanted: int) -> int:
        other = threading.Thread(target=lambda: seen.append(ledger.used_bytes))
        other.start()
        other.join(10)
        remove = limits.on_pressure(lambda _: None)
        remove()
        return cache.release(wanted)

    limits.register_reclaimable("cache", 1, release)
    ledger.account(10)
    assert seen == [10]


def test_the_soft_limit_asks_and_admits_and_does_not_ask_in_vain_each_time():
    ledger, limits = budget(soft=6400)
    cache = Cache(ledger, 100)
    limits.register_reclaimable("cache", 1, cache.release)
    ledger.account(6400)
    assert (cache.asked, ledger.used_bytes) == ([100], 6400)
    for _ in range(50):
        ledger.account(10)
    assert ledger.used_bytes == 6900
    assert 2 <= len(cache.asked) <= 8


def test_what_is_not_in_the_account_is_asked_only_when_the_device_is_full():
    ledger, limits = budget(hard=10)
    asked: list[int] = []
    limits.register_reclaimable("torch", 0, lambda n: asked.append(n) or n, counted=False)
    with pytest.raises(OutOfMemory):
        ledger.account(11)
    assert asked == []
    assert limits.reclaim(5) == {"torch": 5}


def test_a_full_device_is_tried_again_after_somebody_gave_way(monkeypatch):
    memory = DeviceMemory(CPU)
    room = [0]
    real = torch.empty

    def empty(*args, **kwargs):
        if not room[0]:
            raise torch.OutOfMemoryError("full")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(OutOfMemory):
        memory.empty((4,))

    def release(wanted: int) -> int:
        room[0] = 1
        return wanted

    memory.budget.register_reclaimable("cache", 1, release, counted=False)
    assert memory.empty((4,)).shape == (4,)
    assert memory.ledger.peak_bytes == 16


def test_names_are_registered_once_and_can_be_taken_out():
    ledger, limits = budget(hard=1)
    remove = limits.register_reclaimable("cache", 1, lambda n: n)
    with pytest.raises(ConfigError, match="cache"):
        limits.register_reclaimable("cache", 2, lambda n: n)
    remove()
    remove()
    limits.register_reclaimable("cache", 2, lambda _: 0)
    with pytest.raises(OutOfMemory):
        ledger.account(2)


def test_pressure_comes_once_and_is_over_only_below_the_gap():
    ledger, limits = budget(hard=100)
    told: list[bool] = []
    limits.on_pressure(lambda p: told.append(p.high), at=0.9, clear=0.45)
    base = ledger.account(50)
    more = ledger.account(40)
    for _ in range(3):  # around the threshold, within the gap
        ledger.account(5).release()
        more.release()
        more = ledger.account(40)
    assert told == [True]
    more.release()
    assert told == [True]  # 50: still within
    base.release()
    assert told == [True, False]
    limits.hard_bytes = 0
    assert told == [True, False, True]
    limits.hard_bytes = None
    assert told == [True, False, True, False]


def test_a_pressure_callback_that_raises_or_accounts_harms_nobody(caplog):
    ledger, limits = budget(hard=100)
    limits.on_pressure(lambda _: 1 // 0, at=0.5)
    limits.on_pressure(lambda _: ledger.account(1).release(), at=0.5)
    with caplog.at_level(logging.ERROR):
        ledger.account(60).release()
    assert caplog.text.count("memory pressure at 0.5 raised") == 2


@pytest.mark.parametrize(("at", "clear"), [(0, None), (1.5, None), (0.5, 0.5), (0.5, -1)])
def test_thresholds_that_are_none_are_refused(at, clear):
    with pytest.raises(ConfigError, match="threshold"):
        budget()[1].on_pressure(print, at=at, clear=clear)


def test_limits_below_zero_are_refused():
    limits = budget()[1]
    with pytest.raises(MemoryFault):
        limits.soft_bytes = -1
    with pytest.raises(MemoryFault):
        limits.hard_bytes = -1


def test_holdings_keep_tiers_and_numbers_apart_and_say_what_is_unknown():
    memory = DeviceMemory(CPU)
    memory.account(10, "kv", tier="pinned")
    memory.account(30, "kv")
    found = memory.holdings()
    assert [(h.tag, h.tier, h.nbytes) for h in found.held] == [("kv", "", 30), ("kv", "pinned", 10)]
    assert found.outside_bytes is None or found.outside_bytes > 1 << 20
    other = holdings(torch.device("meta"), Ledger(), None, MemoryInfo())
    assert other.outside_bytes is None
    assert other.unseen_bytes is None


def test_the_parts_of_an_accelerator_add_up(monkeypatch):
    from trivet.contracts.memory import Stats
    from trivet.memory import holdings as module

    monkeypatch.setattr(module, "torch_stats", lambda _: Stats(reserved_bytes=500))
    ledger = Ledger()
    tensor = torch.empty(200, dtype=torch.uint8)
    ledger.account(tensor, "weights")
    ledger.account(300, "kv", tier="device")
    ledger.account(77, "staging", tier="pinned")
    info = MemoryInfo(total_bytes=2000, free_bytes=900)
    found = holdings(torch.device("meta"), ledger, None, info)
    # 1100 in use: torch's 500, of which 200 are accounted, 300 of a pool, the rest is not ours
    assert (found.outside_bytes, found.unseen_bytes) == (300, 300)
    del tensor
    gc.collect()
    assert ledger.tied_bytes == 0
    assert ("weights", "") not in ledger.by_place()


def test_a_timeline_is_kept_only_when_asked_for_and_sums_to_what_is_held():
    ledger = Ledger()
    ledger.account(5, "a")
    assert ledger.timeline() == []
    ledger.record(on=True)
    token = ledger.account(7, "b")
    token.release()
    ledger.account(torch.empty(3, dtype=torch.uint8), "c")  # ends at once
    gc.collect()
    assert [(tag, n) for _, tag, n in ledger.timeline()] == [
        ("b", 7), ("b", -7), ("c", 3), ("c", -3),
    ]  # fmt: skip


class Model(RuleBasedStateMachine):
    """A ledger with a limit and two caches that give way, against dictionaries."""

    @initialize(hard=st.integers(0, 200), soft=st.none() | st.integers(0, 200))
    def start(self, hard, soft):
        self.ledger, self.limits = budget(hard, soft)
        self.held: list = []
        self.caches = {name: [] for name in ("low", "high")}
        self.told: list[bool] = []
        for priority, name in enumerate(self.caches):
            self.limits.register_reclaimable(name, priority, self.releaser(name))
        self.limits.on_pressure(lambda p: self.told.append(p.high), at=0.8, clear=0.4)

    def releaser(self, name):
        def release(wanted):
            given = 0
            while self.caches[name] and given < wanted:
                token = self.caches[name].pop()
                given += token.nbytes
                token.release()
            if name == "high" and given:
                assert not self.caches["low"]  # the other one was asked first
            return given

        return release

    @rule(n=st.integers(0, 120), into=st.sampled_from(("held", "low", "high")))
    def account(self, n, into):
        before = sum(t.nbytes for t in self.held)
        try:
            token = self.ledger.account(n, into)
        except OutOfMemory:
            # refused only for what nobody gives back
            assert before + n > self.limits.hard_bytes
            return
        (self.held if into == "held" else self.caches[into]).append(token)

    @rule(i=st.integers(0, 50))
    def release(self, i):
        if self.held:
            self.held.pop(i % len(self.held)).release()

    @rule(n=st.integers(0, 200))
    def limit(self, n):
        self.limits.hard_bytes = n

    @invariant()
    def sums(self):
        if not hasattr(self, "ledger"):
            return
        expected = [t for tokens in (self.held, *self.caches.values()) for t in tokens]
        assert self.ledger.used_bytes == sum(t.nbytes for t in expected)
        assert sum(self.ledger.by_place().values()) == self.ledger.used_bytes
        assert all(a != b for a, b in zip(self.told, self.told[1:], strict=False))
        used, hard = self.ledger.used_bytes, self.limits.hard_bytes
        high = bool(self.told) and self.told[-1]
        assert high if used >= 0.8 * hard else (not high or used > 0.4 * hard)


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, derandomize=True, database=None
)


@pytest.mark.soak
def test_model_for_long():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Model, settings=settings(max_examples=2000, stateful_step_count=60, deadline=None)
    )


@pytest.mark.parametrize(("priority", "release"), [("high", len), (1, None)])
def test_a_registration_that_is_refused_leaves_nothing_behind(priority, release):
    _, made = budget()
    with pytest.raises(ConfigError, match="asked by"):
        made.register_reclaimable("x", priority, release)
    made.register_reclaimable("x", 1, lambda n: 0)
    assert dict(made.reclaim(1)) == {"x": 0}


def test_a_misspelt_or_odd_limit_is_refused():
    _, made = budget()
    with pytest.raises(AttributeError):
        made.hard_limit = 1
    for odd in ("64M", 1.5, -1):
        with pytest.raises(MemoryFault, match="is no limit"):
            made.hard_bytes = odd
    assert made.hard_bytes is None


def test_a_refusal_after_promises_still_says_who_was_asked():
    ledger, made = budget(hard=100)
    made.register_reclaimable("liar", 1, lambda n: n)
    with pytest.raises(OutOfMemory) as caught:
        ledger.account(200, "t")
    assert caught.value.__notes__ == ["asked to give way: liar gave 100 bytes"]
