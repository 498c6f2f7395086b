from __future__ import annotations

import pytest


def test_a_world_of_one(world):
    world("groups.py", "world_is_passed_through order", 1)


def test_the_world_is_passed_through(world):
    world("groups.py", "world_is_passed_through adopted world_made_anew", 2)


def test_parts_of_the_world(world):
    world("groups.py", "parts", 3)


def test_groups_that_do_not_fit_are_refused_alike_on_all_ranks(world):
    said = world("groups.py", "groups_that_do_not_fit", 3)
    assert said[0].count("\n") == 5
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("variable", ["TRIVET_COMM_CHECK", "TRIVET_CHECK"])
def test_check_mode_comes_from_the_environment(world, variable):
    world("groups.py", "checked_by_the_environment", 1, environ={variable: "1"})


@pytest.mark.parametrize("size", [2, 4])
def test_check_mode_finds_mismatches_on_all_ranks(world, size):
    said = [text.splitlines() for text in world("groups.py", "checked_operations mismatches", size)]
    for lines in said:
        assert lines[:11] == said[0][:11]
    assert said[0] == said[1]
    dtype, *_, message = said[0]
    for line in (dtype, message):
        assert "rank 0 has" in line
        assert "float32" in line
        assert "rank 1 has" in line
        assert "int32" in line
