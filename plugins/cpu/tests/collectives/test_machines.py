"""Groups on several machines: shared memory within each, gloo between their leaders."""

from __future__ import annotations

import pytest

FILE = "machines.py"


SOAK = pytest.mark.soak


@pytest.mark.parametrize("size", [pytest.param(3, marks=SOAK), 4, pytest.param(5, marks=SOAK)])
def test_what_is_composed_of_machines_is_what_one_group_makes(ranks, size):
    bodies = "equal_to_one_machine order_is_not_claimed given_up_where_nobody_serves_a_machine"
    ranks(FILE, bodies, size)


@pytest.mark.parametrize("victim", [0, pytest.param(3, marks=SOAK)])
def test_a_lost_rank_ends_the_group_on_every_machine(ranks, victim):
    said = ranks(FILE, "one_is_lost", 4, dies=(victim,), argument=("aabb", victim))
    assert said == ["" if rank == victim else "went on" for rank in range(4)]
