from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [1, 2, 3])
def test_core_chooses_it_and_builds_the_same(ranks, size):
    ranks("groups.py", "chosen equal_to_compositions symmetric_tensors", size)


def test_a_mismatch_is_told_by_core(ranks):
    ranks("groups.py", "mismatch_is_a_mismatch", 2)


def test_survivors_go_on(ranks):
    said = ranks("groups.py", "shrinks_after_a_death", 3, dies=(2,))
    assert said == ["went on", "went on", ""]
