from __future__ import annotations

import itertools

import pytest
import torch

from trivet.catalogue import layer_norm as declared
from trivet_triton.kernels import layer_norm
from trivet_triton.kernels.layer_norm import layer_norm_, layer_norm_out

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TYPES = list(itertools.product((F32, BF16, F16), repeat=2))
STEP = {F32: 1e-5, BF16: 2**-7, F16: 2**-10}
"""A rounding that goes the other way; for float32 what another order of sums may move."""


def randn(*sizes, dtype=F32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, wanted):
    assert found.dtype is wanted.dtype
    step = STEP[wanted.dtype]
    torch.testing.assert_close(found, wanted, rtol=step, atol=step / 2)


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_as_the_reference(xd, wd):
    for (rows, hidden), parts in zip(
        ((2, 128), (3, 1), (5, 17), (2, 514)), itertools.product((0, 1), repeat=2), strict=True
    ):
        x = randn(rows, hidden, dtype=xd) * 2 + 3
        weight, bias = (
            randn(hidden, dtype=wd, seed=5 + i) if here else None for i, here in enumerate(parts)
        )
        found = layer_norm.layer_norm(x, weight, bias, 1e-4)
        close(found, declared.layer_norm.reference(x, weight, bias, 1e-4))
        layer_norm_(x, weight, bias, 1e-4)
        assert torch.equal(x, found)


@pytest.mark.parametrize("hidden", [64, 2560, 70_000])
def test_every_candidate_of_the_tuner(hidden):
    x, weight, bias = randn(2, hidden) + 9, randn(hidden, seed=5), randn(hidden, seed=6)
    wanted = declared.layer_norm.reference(x, weight, bias)
    fixed = {"HIDDEN": hidden, "EPS": 1e-5, "WEIGHT": True, "BIAS": True}
    key, seen = {"hidden": hidden}, []
    for one in (layer_norm.default(key)[0][1], *layer_norm.space(key, 1)):
        what = (one["ROWS"], one["BLOCK"], one["TWICE"])
        if what in seen:
            continue
        seen.append(what)
        launch = layer_norm.variant(F32, F32, True, fixed | one).on(torch.device("cpu"))
        found = torch.zeros_like(x)
        launch(-(-2 // one["ROWS"]), 1, 1, x, weight, bias, found, hidden, hidden, 2)
        close(found, wanted)


def test_rows_apart_and_none():
    wide, weight = randn(3, 200, dtype=F16), randn(96, dtype=F16)
    x, kept = wide[:, 8:104], wide.clone()
    out = torch.full((3, 99), 7.0, dtype=F16)
    layer_norm_out(x, weight, out=out[:, :96])
    close(out[:, :96], declared.layer_norm.reference(x, weight))
    assert bool((out[:, 96:] == 7).all())
    assert torch.equal(wide, kept)
    assert layer_norm.layer_norm(torch.ones(0, 8)).shape == (0, 8)


def test_one_launch_for_every_number_of_rows():
    x, weight = randn(6, 256, dtype=BF16), randn(256, dtype=BF16)
    whole = layer_norm.layer_norm(x, weight)
    before = layer_norm.choose.cache_info().misses
    for i in range(6):
        assert torch.equal(layer_norm.layer_norm(x[i : i + 1], weight), whole[i : i + 1])
    assert layer_norm.choose.cache_info().misses == before
