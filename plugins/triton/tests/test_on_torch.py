from __future__ import annotations

import pytest
import torch

from trivet.catalogue import operators
from trivet.errors import DomainError
from trivet_triton.on_torch import embedding, linear

OPS = operators()


def randn(*sizes, dtype=torch.float32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_rows_of_an_embedding():
    ids, weight = torch.tensor([[0, 4], [2, 4]]), randn(5, 3, dtype=torch.bfloat16)
    assert torch.equal(embedding.embedding(ids, weight), OPS["embedding"].reference(ids, weight))
    assert embedding.embedding(ids[:0], weight).shape == (0, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_products_are_the_reference_s(dtype):
    x, weight, bias = randn(2, 3, 16, dtype=dtype), randn(8, 16, dtype=dtype), randn(8, dtype=dtype)
    for b in (None, bias):
        want = OPS["linear"].reference(x, weight, b)
        assert torch.equal(linear.linear(x, weight, b), want)
        assert torch.equal(linear.linear_packed(x, [weight], 8, b), want)


def test_autocast_changes_nothing():
    x, weight = randn(3, 16), randn(8, 16)
    want = linear.linear(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = linear.linear(x, weight)
    assert mine.dtype is torch.float32
    assert torch.equal(mine, want)


def test_a_pack_for_another_site_is_refused():
    x, weight = randn(3, 16), randn(8, 16)
    for packed, width in (([weight], 9), ([weight.bfloat16()], 8)):
        with pytest.raises(DomainError, match="the pack is") as raised:
            linear.linear_packed(x, packed, width)
        assert "plan.prepare" in raised.value.fix
