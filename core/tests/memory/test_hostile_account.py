"""Amounts, tags, limits and callbacks that no account can take: refused, and nothing is counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from trivet.errors import ConfigError, MemoryFault, OutOfMemory
from trivet.memory.budget import Budget
from trivet.memory.ledger import Ledger

ODD_SIZES = [-1, 1.5, float("nan"), float("inf"), "8", None, [8], b"8", 2 + 0j]
ODD_TAGS = [None, 3, b"weights", ["weights"], {"tag": 1}]


def at_rest(ledger):
    numbers = ledger.used_bytes, ledger.peak_bytes, ledger.by_tag(), ledger.by_place()
    return numbers == (0, 0, {}, {})


@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("how", ["account", "reserve"])
def test_an_amount_that_is_none_is_refused(size, how):
    ledger = Ledger(100)
    with pytest.raises(MemoryFault, match="cannot be made"):
        getattr(ledger, how)(size, "weights")
    assert at_rest(ledger)
    with pytest.raises(OutOfMemory):
        ledger.account(101)


@pytest.mark.parametrize("tag", ODD_TAGS)
@pytest.mark.parametrize("what", [8, torch.empty(8)])
def test_a_tag_that_is_none_is_refused(tag, what):
    ledger = Ledger()
    for call in (lambda: ledger.account(what, tag), lambda: ledger.reserve(8, tag),
                 lambda: ledger.account(what, "weights", tier=tag)):  # fmt: skip
        with pytest.raises(MemoryFault, match="a tag is text"):
            call()
        assert at_rest(ledger)


def test_numbers_of_other_libraries_are_numbers():
    ledger = Ledger()
    with ledger.account(np.int64(5), "a"), ledger.reserve(torch.tensor(3), "b"):
        assert ledger.by_tag() == {"a": 5, "b": 3}
        assert all(type(n) is int for n in ledger.by_tag().values())


@pytest.mark.parametrize("limit", [-1, 1.5, float("nan"), float("inf"), "8", [8]])
def test_a_limit_that_is_none_is_refused_and_the_old_one_holds(limit):
    ledger = Ledger(10)
    budget = Budget(ledger)
    budget.soft_bytes = 5
    for owner, name in ((ledger, "limit_bytes"), (budget, "hard_bytes"), (budget, "soft_bytes")):
        with pytest.raises(MemoryFault, match="is no limit"):
            setattr(owner, name, limit)
    with pytest.raises(MemoryFault, match="is no limit"):
        Ledger(limit)
    assert (ledger.limit_bytes, budget.hard_bytes, budget.soft_bytes) == (10, 10, 5)


def test_limits_of_zero_and_in_contradiction_refuse_or_admit_in_one_way():
    ledger = Ledger(0)
    budget = Budget(ledger)
    budget.soft_bytes = 100  # above the hard one: never reached
    asked = []
    budget.register_reclaimable("cache", 0, lambda n: asked.append(n) or 0)
    with pytest.raises(OutOfMemory) as caught:
        ledger.account(1)
    assert (caught.value.limit_bytes, caught.value.retryable, asked) == (0, False, [1])
    with ledger.account(0, "nothing"):
        assert ledger.used_bytes == 0


@pytest.mark.parametrize(("priority", "release"), [
    (None, int), ("first", int), (float("nan"), int), (0, None), (0, "release")])  # fmt: skip
def test_what_cannot_be_registered_leaves_the_others(priority, release):
    ledger = Ledger(10)
    budget = Budget(ledger)
    budget.register_reclaimable("a", 1, lambda _: 0)
    with pytest.raises(ConfigError):
        budget.register_reclaimable("b", priority, release)
    budget.register_reclaimable("b", 0, lambda _: 0)
    assert list(budget.reclaim(5)) == ["b", "a"]


@pytest.mark.parametrize(("at", "clear"), [
    (float("nan"), None), ("0.9", None), (None, None), (0.9, "x"), (0.5, float("nan")),
    (0, None)])  # fmt: skip
def test_a_threshold_that_is_none_is_refused(at, clear):
    with pytest.raises(ConfigError, match="no thresholds"):
        Budget(Ledger()).on_pressure(print, at=at, clear=clear)
    with pytest.raises(ConfigError, match="no thresholds"):
        Budget(Ledger()).on_pressure(None)


def test_an_interruption_while_others_are_told_leaves_no_amount():
    class Interrupted:
        def added(self, tag):
            raise KeyboardInterrupt

        def removed(self):
            pass

        def make_room(self, error):
            return False

    ledger = Ledger()
    ledger.watcher = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        ledger.account(8, "weights")
    assert ledger.used_bytes == 0
    with pytest.raises(KeyboardInterrupt):
        ledger.account(tensor := torch.empty(8), "weights")
    assert ledger.used_bytes == 0
    del tensor


class Interrupting(str):
    """A tag that is hashed under the lock of a ledger, where a collection may end an owner."""

    __slots__ = ()
    ends = ()

    def __hash__(self):
        while Interrupting.ends:
            Interrupting.ends.pop()()
        return str.__hash__(self)


def finishes(work):
    """Whether a thread ends; one that waits for itself never does."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_a_finaliser_releases_within_a_call_of_its_own_ledger():
    ledger = Ledger()
    Budget(ledger)
    first, second = ledger.account(5, "a"), ledger.account(7, "b")
    Interrupting.ends = [first.release, first.release]

    def work():
        ledger.account(1, Interrupting("c"))

    assert finishes(work)
    assert ledger.by_tag() == {"b": 7, "c": 1}
    second.release()
    first.release()
    assert ledger.used_bytes == 1


def test_a_finaliser_releases_while_thresholds_are_looked_at():
    ledger = Ledger(100)
    budget = Budget(ledger)
    token = ledger.account(95, "a")
    told = []

    class At(float):
        def __mul__(self, other):  # under the lock of the budget
            if not told:
                told.append("interrupted")
                token.release()
            return float(self) * other

    budget.on_pressure(lambda p: told.append(p.high), at=0.5, clear=0.1)
    budget._thresholds[0].at = At(0.5)
    told.clear()
    assert finishes(lambda: ledger.account(1, "b"))
    assert ledger.used_bytes == 1
    assert told[0] == "interrupted"
    assert told[-1] is False
