from __future__ import annotations

from math import inf, nan

import pytest
import torch

from trivet.catalogue import activation as declared
from trivet.errors import DomainError
from trivet_triton.kernels import activation
from trivet_triton.kernels.activation_kernels import space

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
FORMULAS = (("silu", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"}))
UNIT = {F32: 3e-5, BF16: 1.1 * 2**-8, F16: 1.1 * 2**-11}
"""A rounding to nearest, and a tenth of it for the arithmetic before; the exponent's in float32."""
LEAST = {F32: 1e-36, BF16: 1e-36, F16: 2**-25}
"""Near the smallest numbers results are flushed to zero."""


def randn(*sizes, dtype=F32):
    return (torch.randn(*sizes, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)


def exact(name, x, options):
    """The operator in float64, rounded by nobody."""
    return getattr(declared, name).reference(x.double(), **options)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("name", "options"), FORMULAS)
def test_near_the_exact_value(name, options, gated, dtype):
    """Relative to each result, in the tail too; only erf in float32 is as absolute as torch's."""
    name += "_and_mul" * gated
    least = 4e-7 if dtype is F32 and options == {} and "gelu" in name else 0.0
    for rows, width in ((1, 64), (3, 257), (2, 1536), (5, 1)):
        x = randn(rows, width * (1 + gated), dtype=dtype)
        found, wanted = getattr(activation, name)(x, **options), exact(name, x, options)
        assert found.dtype is dtype
        assert found.shape == wanted.shape
        allowed = UNIT[dtype] * wanted.abs() + LEAST[dtype] + least * x.double().abs().amax() ** 2
        assert bool(((found.double() - wanted).abs() <= allowed).all())


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(("name", "options"), FORMULAS)
def test_numbers_that_are_none_and_large_ones(name, options, dtype):
    x = torch.tensor([inf, -inf, nan, 6e4, -6e4, -100.0, 0.0, -0.0], dtype=dtype)
    found = getattr(activation, name)(x, **options)
    assert found.tolist()[0] == inf
    assert found.isnan().tolist() == [False, True, True, *[False] * 5]  # as the reference in CUDA
    assert found[3] == x[3]
    assert found[4:].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("name", "options"), FORMULAS)
def test_rows_apart_and_in_place(name, options):
    wide = randn(3, 2, 200, dtype=F16)
    x, kept = wide[..., 8:104], wide.clone()
    wanted = getattr(activation, name)(x.contiguous(), **options)
    assert torch.equal(getattr(activation, name)(x, **options), wanted)
    out = torch.full((3, 2, 99), 7.0, dtype=F16)
    getattr(activation, f"{name}_out")(x, **options, out=out[..., :96])
    assert torch.equal(out[..., :96], wanted)
    assert bool((out[..., 96:] == 7).all())
    getattr(activation, f"{name}_")(x, **options)
    assert torch.equal(x, wanted)
    assert torch.equal(wide[..., 104:], kept[..., 104:])
    gated = torch.full((3, 2, 51), 7.0, dtype=F16)
    getattr(activation, f"{name}_and_mul_out")(x, **options, out=gated[..., :48])
    assert torch.equal(gated[..., :48], getattr(activation, f"{name}_and_mul")(x, **options))
    assert bool((gated[..., 48:] == 7).all())


@pytest.mark.parametrize("offset", [0, 1])
def test_unaligned_tensors_and_none(offset):
    x = randn(1 + 3 * 64, dtype=BF16)[offset : offset + 192].view(3, 64)
    assert torch.equal(activation.silu(x), activation.silu(x.clone()))
    assert torch.equal(activation.silu_and_mul(x), activation.silu_and_mul(x.clone()))
    assert activation.silu(torch.ones(0, 8)).shape == (0, 8)
    assert activation.gelu_and_mul(torch.ones(0, 8)).shape == (0, 4)


@pytest.mark.parametrize("width", [48, 1408])
def test_every_candidate_of_the_tuner(width):
    x = randn(5, 2 * width, dtype=BF16)
    wanted, seen = activation.silu_and_mul(x), []
    for one in (*space({"width": width}, 1), *space({"width": width}, 8192)):
        what = (one["ROWS"], one["BLOCK"])
        if what in seen:
            continue
        seen.append(what)
        given = {"WIDTH": width, "ACT": "silu", "GATED": True, **one}
        launch = activation.variant(activation.ROWS, BF16, True, given).on(torch.device("cpu"))
        found = torch.zeros_like(wanted)
        grid = -(-5 // one["ROWS"]) * -(-width // one["BLOCK"])
        launch(grid, 1, 1, x, found, 2 * width, width, 5)
        assert torch.equal(found, wanted)
    assert len(seen) > 2


def test_an_unknown_approximation():
    for call in (activation.gelu, activation.gelu_, activation.gelu_and_mul):
        with pytest.raises(DomainError, match="approximate"):
            call(torch.ones(2, 8), "sigmoid")
