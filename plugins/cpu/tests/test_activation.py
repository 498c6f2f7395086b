from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu import activation

F32, BF16 = torch.float32, torch.bfloat16


def in_float64(x):
    gate, up = x.double().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize("inter", [1, 5, 16, 31, 32, 100, 1536])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values(level, randn, inter, dtype):
    x = (8 * randn(6, 2 * inter)).to(dtype)
    y = activation.silu_and_mul(x)
    tolerance = 1e-6 if dtype == F32 else 2**-8
    torch.testing.assert_close(y.double(), in_float64(x), rtol=tolerance, atol=1e-7)
    out = torch.empty_like(y)
    activation.silu_and_mul_out(x, out=out)
    assert torch.equal(out, y)


def test_the_whole_range_of_the_exponential(level):
    gate = torch.linspace(-110, 110, 100_001)
    y = activation.silu_and_mul(torch.cat((gate, torch.ones_like(gate))))
    expected = torch.nn.functional.silu(gate)
    # below -88 exp overflows in float32 and the result is -0, as torch's is
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_special_values_pass_as_in_torch(level, dtype):
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.8, -88.8, 3e38, -3e38, 1e-40]
    gate = torch.tensor(special).to(dtype).repeat(4)
    for other in (1.0, 0.0, torch.inf, torch.nan):
        up = torch.full_like(gate, other)
        y = activation.silu_and_mul(torch.cat((gate, up)))
        expected = (torch.nn.functional.silu(gate.float()) * up.float()).to(dtype)
        torch.testing.assert_close(y, expected, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rows_are_independent_of_batch_threads_and_strides(level, randn, threads, dtype):
    wide = randn(300, 1200, dtype=dtype)
    x = wide[:, 100:1100]
    with threads(1):
        y = activation.silu_and_mul(x.contiguous())
        assert torch.equal(activation.silu_and_mul(x), y)
        assert torch.equal(activation.silu_and_mul(x[7:8]), y[7:8])
    for count in (2, 3):
        with threads(count):
            assert torch.equal(activation.silu_and_mul(x), y)


def test_empty():
    assert activation.silu_and_mul(torch.ones(0, 8)).shape == (0, 4)
    assert activation.silu_and_mul(torch.ones(3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(2, 7), "even"),
        (torch.ones(2, 8, dtype=torch.float64), "dtype"),
        (torch.ones(8, 2).T, "dense"),
        (torch.ones(4, 3, 8).transpose(0, 1), "collapse"),
    ],
)
def test_refusals(x, words):
    with pytest.raises(DomainError, match=words):
        activation.silu_and_mul(x)


def test_refusals_of_out():
    with pytest.raises(DomainError, match="half"):
        activation.silu_and_mul_out(torch.ones(2, 8), out=torch.ones(2, 8))
    with pytest.raises(DomainError, match="dtype"):
        activation.silu_and_mul_out(torch.ones(2, 8), out=torch.ones(2, 4, dtype=BF16))
