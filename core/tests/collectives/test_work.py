from __future__ import annotations

import pytest
import torch

from trivet.collectives.work import Health, Meeting, Started
from trivet.contracts.collectives import Completed, Work
from trivet.errors import CommError


@pytest.fixture
def exchange():
    """Makes meetings whose other end speaks when the test says so; records what was launched."""

    class Exchange:
        def __init__(self):
            self.queue, self.launched, self.spoken = [], [], set()

        def meeting(self, name, pair, arrived=None, verify=lambda: None):
            def launch():
                self.launched.append(name)
                return Completed(torch.empty(0))

            arrived = arrived or (lambda: name in self.spoken)
            return Meeting(self.queue, pair, arrived, verify, launch, timeout=0.05)

    return Exchange()


def test_a_message_never_overtakes_an_earlier_one_of_its_pair(exchange):
    def first_arrives_just_after_the_look():
        now = "first" in exchange.spoken
        exchange.spoken |= {"first", "second"}
        return now

    exchange.meeting("first", (0, 1), first_arrives_just_after_the_look)
    second = exchange.meeting("second", (0, 1))
    assert not second.is_completed()
    assert exchange.launched == []
    assert second.is_completed()
    assert exchange.launched == ["first", "second"]


def test_other_pairs_do_not_wait(exchange):
    exchange.meeting("stuck", (0, 1))
    free = exchange.meeting("free", (1, 0))
    exchange.spoken.add("free")
    free.wait()
    assert exchange.launched == ["free"]


def test_a_message_whose_other_end_stays_away_ends_the_group(exchange):
    health = Health("group g")
    work = Started("send", "check", health, exchange.meeting("a", (0, 1)))
    with pytest.raises(CommError, match="timed out") as caught:
        work.wait()
    with pytest.raises(CommError, match="failed before"):
        health.require()
    with pytest.raises(CommError) as again:
        work.wait()
    assert again.value is caught.value


def test_a_refused_message_leaves_the_group_as_it_was(exchange):
    def verify():
        raise CommError("ranks disagree")

    health = Health("group g")
    exchange.spoken.add("a")
    work = Started("send", "check", health, exchange.meeting("a", (0, 1), verify=verify))
    with pytest.raises(CommError, match="ranks disagree"):
        work.wait()
    health.require()
    assert work.is_completed()
    assert exchange.queue == []
    assert exchange.launched == []


def test_what_has_to_follow_happens_once():
    calls = []
    out = torch.ones(2)
    work = Started("sum", "p", Health("g"), Completed(out), out=out, finish=lambda: calls.append(1))
    work.wait()
    assert work.result() is out
    assert calls == [1]
    assert isinstance(work, Work)
    assert isinstance(Completed(out), Work)
    assert Completed(out).result() is out
