"""What happens to a group whose ranks do not do the same; nobody waits for ever.

Ranks that die, stop, are late or leave are in ``test_soak.py``.
"""

from __future__ import annotations

import pytest

FILE = "failures.py"


@pytest.fixture
def fails(ranks):
    """Runs a body with a deadline."""
    return lambda body, size, seconds=2.0, **more: ranks(FILE, body, size, seconds=seconds, **more)


def test_a_dead_sender_is_lost_and_what_it_sent_is_not(fails):
    fails("dead_sender", 2, dies=(1,))


def test_a_message_that_nobody_takes_is_a_timeout(fails):
    fails("unreceived", 2, seconds=1.0)


@pytest.mark.parametrize("size", [2, 3])
def test_abort_ends_every_wait(fails, size):
    fails("aborted", size)


@pytest.mark.parametrize("size", [2, 3])
def test_a_signal_ends_a_wait(fails, size):
    fails("interrupted", size)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_call_different_things_all_learn_of_it(fails, size):
    said = fails("mismatches message_of_another_size closed", size)
    assert len(set(said)) == 1
    lines = dict(line.split(": ", 1) for line in said[0].splitlines())
    other = size - 1
    assert lines["dtype"] == (
        f"rank 0 calls all_reduce sum of 10 float32, rank {other} calls all_reduce sum of 10 int32"
    )
    assert lines["operation"].endswith(f"rank {other} calls barrier")
    assert lines["root"].endswith("broadcast of 40 bytes with root 1")
    assert lines["pieces"].startswith(f"rank {other} sends 5 bytes to rank 0, which expects 4")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_memory_is_given_back(fails, size):
    fails("given_back", size)


@pytest.mark.parametrize("size", [2, 3])
def test_what_one_rank_cannot_no_rank_does(fails, size):
    said = fails("one_cannot", size)
    assert len(set(said)) == 1
    user, room = said[0].splitlines()
    assert f"ranks 0 and {size - 1} cannot share memory: user" in user
    assert "rank 0: no shared memory of" in room


def test_a_rank_that_does_not_come_is_a_timeout(fails):
    fails("one_does_not_come", 3, seconds=1.0)
