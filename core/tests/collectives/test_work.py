from __future__ import annotations

import pytest
import torch

from trivet.collectives.health import Health, meaning
from trivet.collectives.work import Meeting, Started
from trivet.contracts.collectives import Work
from trivet.errors import CommError, CommTimeout, GroupMismatch, PeerLost


def a_call():
    return [0, "send", torch.uint8, 0, "", None, "p", 0.0, None, ""]


def failed(error, call):
    return error


@pytest.fixture
def exchange():
    """Makes meetings whose other end speaks when the test says so; records what was launched."""

    class Exchange:
        def __init__(self):
            self.queue, self.launched, self.spoken = [], [], set()

        def meeting(self, name, pair, arrived=None, verify=lambda: None):
            def launch():
                self.launched.append(name)

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


def test_a_message_whose_other_end_stays_away_names_the_pair(exchange):
    work = Started(a_call(), exchange.meeting("a", (0, 1)), failed)
    with pytest.raises(CommTimeout, match="timed out") as caught:
        work.wait()
    assert caught.value.ranks == (0, 1)
    with pytest.raises(CommTimeout) as again:
        work.wait()
    assert again.value is caught.value


def test_a_refused_message_says_so_and_moves_nothing(exchange):
    def verify():
        raise GroupMismatch("ranks disagree")

    exchange.spoken.add("a")
    work = Started(a_call(), exchange.meeting("a", (0, 1), verify=verify), failed)
    with pytest.raises(GroupMismatch, match="ranks disagree"):
        work.wait()
    assert work.is_completed()
    assert exchange.queue == []
    assert exchange.launched == []


def test_what_has_to_follow_happens_once():
    calls = []
    out = torch.ones(2)
    work = Started(a_call(), None, failed, out, lambda: calls.append(1))
    work.wait()
    assert work.result() is out
    assert calls == [1]
    assert isinstance(work, Work)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("[/a/b.cc:78] Timed out waiting 50ms for recv", CommTimeout),
        ("[/a/b.cc:5] Connection closed by peer [::1]:7. This is typically caused by x", PeerLost),
        ("Application timeout caused pair closure", CommTimeout),
        ("something else", CommError),
    ],
)
def test_what_backends_say_has_a_type(said, kind):
    found = meaning(RuntimeError(said + "\nmore"), "torch/x")
    assert type(found) is kind
    assert ".cc" not in found.what
    assert "typically" not in found.what


def test_a_failed_group_raises_what_ended_it_again():
    health = Health("group g")
    health.require()
    first = health.fail(PeerLost("gone", ranks=[2]))
    health.fail(CommTimeout("later"))
    with pytest.raises(PeerLost, match="failed before: gone") as caught:
        health.require()
    assert caught.value.ranks == (2,)
    assert caught.value.__cause__ is first
    assert first.what == "gone"
