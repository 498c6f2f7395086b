"""Vendors state their devices; kernels' constants follow from what was stated."""

from __future__ import annotations

import json
from importlib.util import find_spec
from math import inf
from types import SimpleNamespace

import pytest
import torch

from trivet.errors import OrderError
from trivet_triton import hardware
from trivet_triton.constants import Constants, by_lanes, compiler_options, lanes_of
from trivet_triton.hardware import Architecture, Own, Vendor

KEY = {"width": 64}


def default(key):
    return ((8, {"BLOCK": lanes_of(key), "num_warps": 1}), (inf, {"BLOCK": 4, "num_warps": 8}))


def space(key, rows):
    yield from ({"num_warps": w, "rows": rows} for w in (1, 2, 4))


@pytest.fixture
def world(monkeypatch, tmp_path):
    """A vendor with an architecture of each kind, alone in the process."""
    monkeypatch.setattr(hardware, "_vendors", {})
    monkeypatch.setattr(hardware, "_interpreted", [hardware.INTERPRETED.name])
    made = {
        "narrow": Architecture("narrow", 64, tables=tmp_path),
        "wide": Architecture("wide", 160, lanes=64),
        "own": Architecture("own", 64, lanes=64, own={"k": Own(lambda key: ((inf, {"X": 1}),))}),
    }
    said = SimpleNamespace(here=True)
    hardware.add(
        Vendor(
            "back", "meta", made.get, lambda index: list(made)[index], lambda index: 7 + index,
            lambda: said.here, lambda target: {"marked": True} if target.arch == "wide" else None,
        )
    )  # fmt: skip
    yield said
    hardware.add(Vendor("back", "meta", lambda name: None, str, int, lambda: False))


def test_devices_are_asked_of_the_vendor_of_this_torch(world):
    assert [hardware.arch_at(i) for i in range(2)] == ["narrow", "wide"]
    assert hardware.device_at(1) == torch.device("meta", 1)
    assert hardware.device_at(-1) == torch.device("cpu")
    assert [hardware.processors(i) for i in (-1, 1)] == [2, 8]
    assert hardware.shared_kib("wide") == 160


def test_what_nobody_stated_is_no_guess(world):
    with pytest.raises(OrderError, match="no package has described the architecture odd"):
        hardware.architecture("odd")
    with pytest.raises(OrderError, match="Triton's back end other"):
        hardware.vendor_of(SimpleNamespace(backend="other"))
    world.here = False
    with pytest.raises(OrderError, match="no package has stated this torch's devices"):
        hardware.processors(5)


def test_interpreted_kernels_take_the_constants_of_a_chosen_architecture(world):
    before = hardware.arch_at(-1)
    with hardware.interpreted_as("wide"):
        assert hardware.arch_at(-1) == "wide"
    assert hardware.arch_at(-1) == before
    with pytest.raises(OrderError):
        hardware.interpret_as("odd")


def test_as_many_threads_come_in_fewer_wide_warps(world):
    made = Constants("plain", space=space, default=default)
    assert [c["num_warps"] for _, c in made.buckets("narrow", KEY)] == [1, 8]
    assert [c["num_warps"] for _, c in made.buckets("wide", KEY)] == [1, 4]
    assert [c["num_warps"] for c in made.candidates("narrow", KEY, 2)] == [1, 2, 4]
    assert [c["num_warps"] for c in made.candidates("wide", KEY, 2)] == [1, 2]
    assert by_lanes({"BLOCK": 3}, 64) == {"BLOCK": 3}


def test_a_kernel_may_be_told_the_lanes_instead(world):
    made = Constants("told", space=space, default=default, wide=True)
    assert made.buckets("wide", KEY)[0] == (8, {"BLOCK": 64, "num_warps": 1})
    assert made.buckets("wide", KEY)[1][1]["num_warps"] == 8
    assert made.buckets("narrow", KEY)[0][1]["BLOCK"] == 32


def test_a_vendor_may_have_constants_of_its_own_and_tables_come_first(world, tmp_path):
    made = Constants("k", space=space, default=default)
    assert made.buckets("own", KEY) == ((inf, {"X": 1}),)
    assert len(list(made.candidates("own", KEY, 1))) == 2
    rows = [{"kernel": "k", "key": KEY, "rows": 4, "config": {"X": 2}, "us": 1.0}]
    table = {"schema": 1, "arch": "narrow", "measured": {}, "rows": rows}
    (tmp_path / "narrow.json").write_text(json.dumps(table))
    assert made.buckets("narrow", KEY) == ((inf, {"X": 2}),)
    assert made.folder("wide") is None


def test_the_compilers_part_of_a_config_has_no_zeros():
    config = {"BLOCK_M": 1, "num_warps": 4, "maxnreg": 0, "waves_per_eu": 2, "parts": 3}
    assert compiler_options(config) == {"num_warps": 4, "waves_per_eu": 2}


@pytest.mark.skipif(find_spec("triton") is None, reason="not_run: triton is not installed")
def test_launches_overlap_where_the_vendor_says_so(world):
    from trivet_triton.kernels.overlap import overlap

    found = [overlap(SimpleNamespace(backend="back", arch=a)) for a in ("wide", "narrow")]
    assert [f.constants["OVERLAP"] for f in found] == [True, False]
    assert found[0].options == {"marked": True}
    assert overlap(None).constants == {"OVERLAP": False}
