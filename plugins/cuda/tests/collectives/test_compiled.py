"""The kernels between GPUs, compiled without one: compile_only."""

from __future__ import annotations

import pytest

import required

required.triton()

from trivet_cuda.assembly import read
from trivet_cuda.collectives.variants import variants
from trivet_cuda.target import TARGETS


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_names_are_one_for_each_variant(arch):
    every = dict(variants(arch))
    assert len(every) == len(list(variants(arch)))
    assert len(set(every.values())) == len(every)


@pytest.mark.parametrize("name", ["one_shot_1MiB", "one_shot_fp32", "in_place"])
def test_words_move_sixteen_bytes_at_a_time_and_no_register_spills(name):
    target = TARGETS["sm90"]
    made = dict(variants("sm90"))[name].compile(target)
    facts = read(made, target)
    assert facts.stack == 0
    assert max(facts.loads) == max(facts.stores) == 16
    text = made.asm["ptx"]
    if name == "in_place":
        assert ".release" in text
        assert ".sys" in text
        assert ".acquire" in text
    else:
        assert "st.global.wt.v4.b32" in text  # seen by the whole system, in one piece
        assert "ld.volatile.global.v4.b32" in text
    assert "griddepcontrol.wait" in text
    assert "globaltimer" in text
