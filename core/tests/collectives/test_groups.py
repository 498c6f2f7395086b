from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [1, 2])
def test_the_world_is_passed_through(world, size):
    world("groups.py", "world_is_passed_through", size)


def test_parts_of_the_world(world):
    world("groups.py", "parts", 3)


def test_groups_that_do_not_fit_are_refused_alike_on_all_ranks(world):
    said = world("groups.py", "groups_that_do_not_fit", 3)
    assert said[0].count("\n") == 5
    assert said[0] == said[1] == said[2]


def test_what_is_missing_is_named(world):
    world("groups.py", "order", 1)


def test_a_new_world_gets_new_groups(world):
    world("groups.py", "world_made_anew", 2)


@pytest.mark.parametrize("size", [2, 3])
def test_check_mode_lets_right_calls_through(world, size):
    world("groups.py", "checked_operations", size)


def test_check_mode_comes_from_the_environment(world):
    world("groups.py", "checked_by_the_environment", 1, environ={"TRIVET_CHECK": "1"})


@pytest.mark.parametrize("size", [2, 3])
def test_check_mode_finds_mismatches_on_all_ranks(world, size):
    said = [text.splitlines() for text in world("groups.py", "mismatches", size)]
    for lines in said:
        assert lines[:11] == said[0][:11]
    assert said[0] == said[1]
    dtype, *_, message = said[0]
    for line in (dtype, message):
        assert "rank 0 has" in line
        assert "float32" in line
        assert "rank 1 has" in line
        assert "int32" in line


@pytest.mark.parametrize("size", [2, 3])
def test_a_dead_peer_is_an_error_and_no_hang(world, size):
    world("groups.py", "dead_peer", size, dies=(1,))


def test_a_late_peer_is_an_error_on_both_sides(world):
    world("groups.py", "late_peer", 2)


def test_a_wait_may_be_shorter_than_the_groups_timeout(world):
    world("groups.py", "short_wait", 2)


def test_a_late_peer_in_check_mode_is_named(world):
    world("groups.py", "late_in_check_mode", 2)


@pytest.mark.parametrize("size", [1, 2])
def test_a_vendor_may_bring_one_operation(world, size):
    world("groups.py", "vendor_with_one_operation", size)


@pytest.mark.parametrize("body", ["vendor_on_one_rank", "vendor_that_cannot_open"])
def test_a_vendor_that_is_not_everywhere_is_refused_everywhere(world, body):
    said = world("groups.py", body, 2)
    assert said[0] == said[1] != ""


def test_a_vendor_that_raises_is_named(world):
    world("groups.py", "vendor_that_raises", 2)
