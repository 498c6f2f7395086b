from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [2, 4])
def test_a_dead_peer_is_an_error_and_no_hang(world, size):
    world("failures.py", "dead_peer", size, dies=(1,))


def test_a_late_peer_is_an_error_on_both_sides(world):
    world("failures.py", "late_peer short_wait other_order", 2)


def test_a_late_peer_in_check_mode_is_named(world):
    world("failures.py", "late_in_check_mode", 2)


def test_a_stopped_peer_is_an_error_on_both_sides(world):
    world("failures.py", "stopped_peer", 2)


def test_a_store_that_does_not_answer_is_no_hang(world):
    world("failures.py", "silent_store", 1)


def test_abort_comes_from_any_thread(world):
    world("failures.py", "aborted", 2)


def test_survivors_shrink(world):
    # The store is world rank 0's here: its loss is not survived.
    world("failures.py", "shrinks", 4, dies=(3,))


def test_survivors_are_who_they_are_told(world):
    world("failures.py", "remembers shrinks_as_told", 3)
