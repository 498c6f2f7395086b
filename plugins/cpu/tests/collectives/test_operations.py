from __future__ import annotations

import pytest

REDUCTIONS = "every_reduction every_level exact_integers special_numbers slices"
MOVEMENT = "movement uneven messages messages_beside_collectives symmetric"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reductions(ranks, size):
    ranks("operations.py", REDUCTIONS, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_movement(ranks, size):
    ranks("operations.py", MOVEMENT, size)
