from __future__ import annotations

import pytest

ALL = (
    "reductions movement uneven_pieces uneven_shares every_dtype_moves narrow_dtypes_are_reduced "
    "fused experts truth shapes started arguments"
)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_operations(world, size):
    world("operations.py", ALL, size)


@pytest.mark.parametrize("size", [2, 3])
def test_messages(world, size):
    world("operations.py", "messages", size)


def test_single_elements_and_closed_groups(world):
    world("operations.py", "one_of_a_strided_tensor closed_groups_are_let_go", 2)
