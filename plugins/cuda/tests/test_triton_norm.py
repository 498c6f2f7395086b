from __future__ import annotations

import itertools
from math import inf

import pytest
import torch

from trivet.catalogue import norm as declared
from trivet.contracts.implementation import claims_of
from trivet.errors import DomainError
from trivet_triton.kernels import norm, norm_invariant
from trivet_triton.kernels.norm_kernels import config, default, space

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TYPES = list(itertools.product((F32, BF16, F16), repeat=2))
STEP = {F32: 1e-5, BF16: 2**-6, F16: 2**-9}
"""Two roundings that go the other way; for float32 what another order of sums may move."""
SIZES = ((2, 128), (3, 1), (5, 17), (2, 514), (2, 2048))
SCALARS = ((1e-6,), (1e-5, 1.0, True), (1e-6, 1.0), (1e-6, 0.0, False, 1))


def randn(*sizes, dtype=F32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, wanted):
    assert found.dtype is wanted.dtype
    assert found.shape == wanted.shape
    step = STEP[wanted.dtype]
    torch.testing.assert_close(found, wanted, rtol=step, atol=step / 100)
    if wanted.dtype is not F32:  # which is rare
        assert (found != wanted).sum() <= 1 + found.numel() // 100


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_as_the_references(xd, wd):
    for (rows, hidden), scalars in zip(SIZES, itertools.cycle(SCALARS), strict=False):
        x, residual = randn(rows, hidden, dtype=xd), randn(rows, hidden, dtype=xd, seed=4)
        weight = randn(hidden, dtype=wd, seed=5)
        wanted = declared.rms_norm.reference(x, weight, *scalars)
        close(norm.rms_norm(x, weight, *scalars), wanted)
        y, total = norm.fused_add_rms_norm(x, residual, weight, *scalars)
        normed, summed = declared.fused_add_rms_norm.reference(x, residual, weight, *scalars)
        close(y, normed)
        assert torch.equal(total, summed)  # also what is normalised was rounded before
        norm.fused_add_rms_norm_(x, residual, weight, *scalars)
        assert torch.equal(x, y)
        assert torch.equal(residual, total)


@pytest.mark.parametrize("scalars", SCALARS)
def test_every_scalar(scalars):
    x, weight = randn(2, 96, dtype=BF16), randn(96, dtype=BF16, seed=5)
    close(norm.rms_norm(x, weight, *scalars), declared.rms_norm.reference(x, weight, *scalars))


@pytest.mark.parametrize("hidden", [64, 520, 5120])
def test_every_candidate_of_the_tuner(hidden):
    """Each way over the rows gives the same, also where a program walks over several."""
    x, residual = randn(3, hidden, dtype=BF16), randn(3, hidden, dtype=BF16, seed=4)
    weight = randn(hidden, dtype=BF16, seed=5)
    wanted = declared.fused_add_rms_norm.reference(x, residual, weight)
    key, seen = {"hidden": hidden}, []
    candidates = (*space(key, 1), *space(key, 8192), *(c for _, c in default(key)))
    for one in candidates:
        what = {n: v for n, v in one.items() if n not in ("num_warps", "num_stages", "STREAM")}
        if what in seen:
            continue
        seen.append(what)
        ((_, each, _, launch),) = norm.arms(
            ((inf, one),), True, BF16, BF16, hidden, not hidden % 8, -1, 1e-6, 0.0, False, 0
        )
        y, total = torch.zeros_like(x), torch.zeros_like(x)
        grid = 2 if one["RESIDENT"] else -(-3 // each)
        strides = (hidden,) * 4
        launch(grid, 1, 1, x, residual, weight, y, total, *strides, 3)
        close(y, wanted[0])
        assert torch.equal(total, wanted[1])
    assert len(seen) > 2


def test_a_row_longer_than_registers():
    hidden = 70_000
    assert config(hidden, 32)["TWICE"]
    x, residual, weight = randn(1, hidden), randn(1, hidden, seed=4), randn(hidden, seed=5)
    y, total = norm.fused_add_rms_norm(x, residual, weight, variance_size=hidden - 1)
    wanted = declared.fused_add_rms_norm.reference(x, residual, weight, variance_size=hidden - 1)
    close(y, wanted[0])
    assert torch.equal(total, wanted[1])


def test_rows_apart_and_their_neighbours():
    wide, weight = randn(3, 2, 200, dtype=F16), randn(96, dtype=F16)
    x, kept = wide[..., 8:104], wide.clone()
    wanted = declared.rms_norm.reference(x, weight)
    assert norm.rms_norm(x, weight).is_contiguous()
    out = torch.full((3, 2, 99), 7.0, dtype=F16)
    norm.rms_norm_out(x, weight, out=out[..., :96])
    close(out[..., :96], wanted)
    assert bool((out[..., 96:] == 7).all())
    norm.rms_norm_(x, weight)
    close(x, wanted)
    assert torch.equal(wide[..., :8], kept[..., :8])
    assert torch.equal(wide[..., 104:], kept[..., 104:])


def test_rows_behind_a_dim_of_one():
    wide = randn(4, 3, 32)
    x = wide[:, 1:2]  # the stride of the middle dim says nothing about the rows
    weight = randn(32)
    close(norm.rms_norm(x, weight), declared.rms_norm.reference(x, weight))
    close(norm.rms_norm(wide[1, 1], weight), declared.rms_norm.reference(wide[1, 1], weight))


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_unaligned_tensors(offset):
    base, weight = randn(1 + 4 * 64, dtype=BF16), randn(67, dtype=BF16)[offset : offset + 64]
    x = base[offset % 2 : offset % 2 + 4 * 64].view(4, 64)
    close(norm.rms_norm(x, weight), declared.rms_norm.reference(x, weight))


def test_outputs_of_the_fused_form():
    x, residual, weight = randn(3, 24), randn(3, 24, seed=4), randn(24)
    out = [torch.zeros(3, 40)[:, :24], torch.zeros(3, 24)]
    norm.fused_add_rms_norm_out(x, residual, weight, out=out)
    for found, wanted in zip(out, norm.fused_add_rms_norm(x, residual, weight), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(DomainError, match="no dense rows"):
        norm.fused_add_rms_norm_out(x, residual, weight, out=[out[0], torch.zeros(24, 3).t()])


def test_no_rows_and_no_such_prefix():
    assert norm.rms_norm(torch.ones(0, 8), torch.ones(8)).shape == (0, 8)
    norm.fused_add_rms_norm_(torch.ones(0, 8), torch.ones(0, 8), torch.ones(8))
    for size in (-1, 9):
        with pytest.raises(DomainError, match="variance_size"):
            norm.rms_norm(torch.ones(1, 8), torch.ones(8), variance_size=size)


def test_numbers_that_are_none():
    x = torch.ones(3, 64)
    x[0, 3], x[1, 3] = inf, float("nan")
    found, wanted = norm.rms_norm(x, x[2]), declared.rms_norm.reference(x, x[2])
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("hidden", [128, 4096, 5120])
def test_one_program_for_every_number_of_rows(hidden):
    """What claims that rows do not depend on each other has a single arm, made without them."""
    arms = norm_invariant.choose(False, BF16, BF16, hidden, True, -1, 1e-6, 0.0, False, 0)
    assert [most for most, *_ in arms] == [inf]
    x, weight = randn(5, hidden, dtype=BF16), randn(hidden, dtype=BF16)
    whole = norm_invariant.rms_norm(x, weight)
    close(whole, declared.rms_norm.reference(x, weight))
    for i in range(5):
        assert torch.equal(norm_invariant.rms_norm(x[i : i + 1], weight), whole[i : i + 1])


def test_claims():
    for module, name, invariant in (
        (norm, "triton", False),
        (norm_invariant, "triton_invariant", True),
    ):
        found = {}
        for function in vars(module).values():
            if getattr(function, "__module__", "") == module.__name__:
                found |= {c.target: c for c in claims_of(function)}
        both = ("rms_norm", "fused_add_rms_norm")
        assert set(found) == {f"{n}{form}@1" for n in both for form in ("", "_", "_out")}
        assert {c.name for c in found.values()} == {name}
        assert all(c.graph_safe and c.deterministic for c in found.values())
        assert all(c.batch_invariant is invariant for c in found.values())
