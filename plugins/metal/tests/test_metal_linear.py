"""Products go to torch, behind guards for faults of MPS that nobody would see."""

from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_metal.operators import linear


@pytest.fixture
def products(monkeypatch):
    """The matrices that torch is given."""
    seen, real = [], torch.mm

    def mm(left, right):
        seen.append((left, right))
        return real(left, right)

    monkeypatch.setattr(torch, "mm", mm)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_long_product_is_made_in_pieces_and_added_in_float32(products, dtype):
    x, weight = torch.ones(2, 40_000, dtype=dtype), torch.ones(3, 40_000, dtype=dtype) / 64
    result = linear.linear(x, weight, torch.ones(3, dtype=dtype))
    assert result.dtype is dtype
    assert torch.allclose(result.float(), torch.tensor(40_000 / 64 + 1), rtol=1e-2)
    assert max(left.shape[1] for left, _ in products) <= linear.PIECE < 32_767
    assert {left.dtype for left, _ in products} == {torch.float32}


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1, 8).expand(3, 8),
        torch.randn(3, 1).expand(3, 8),
        torch.randn(8, 3).t(),
        torch.randn(3, 20)[:, 5:13],
        torch.randn(2, 3, 8).transpose(0, 1),
    ],
    ids=["stride 0", "inner stride 0", "transposed", "slice", "led"],
)
def test_torch_is_given_dense_rows_alone(products, x):
    weight = torch.randn(8, 5).t()
    result = linear.linear(x, weight)
    torch.testing.assert_close(result, torch.nn.functional.linear(x, weight))
    for left, right in products:
        for matrix in (left, right.t()):
            assert matrix.stride(1) == 1
            assert matrix.stride(0) >= matrix.shape[1] or matrix.shape[0] == 1


def test_nothing_to_add_is_zero_or_the_bias():
    bias = torch.ones(3)
    assert torch.equal(linear.linear(torch.empty(2, 0), torch.empty(3, 0), bias), bias.expand(2, 3))


def test_autocast_changes_nothing():
    x, weight = torch.randn(2, 8), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear.linear(x, weight), linear.product(x, weight, None))
        assert linear.linear(x, weight).dtype is torch.float32


def test_a_pack_of_another_width_or_dtype_is_refused():
    x, weight = torch.randn(2, 8), torch.randn(3, 8)
    for pack, width in ((weight, 4), (weight.half(), 3)):
        with pytest.raises(DomainError, match="prepare the weight"):
            linear.linear_packed(x, [pack], width)
    assert torch.equal(linear.linear_packed(x, [weight], 3), linear.linear(x, weight))
