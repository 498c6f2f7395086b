from __future__ import annotations

import pytest
import torch

from trivet.catalogue.dense_attention import attention as operator
from trivet.errors import DomainError
from trivet_cuda.on_torch.dense_attention import attention_torch, attention_torch_masked

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# batch, queries, keys, kv heads, group, head_dim, value_dim
SHAPES = [
    (2, 40, 40, 2, 1, 64, 64),
    (2, 10, 70, 1, 3, 64, 24),
    (2, 12, 5, 1, 2, 20, 20),
    (3, 1, 65, 2, 4, 128, 128),
]
SCALARS = [{}, {"causal": True}, {"causal": True, "window": 7}, {"window": 3}]
NEAR = {F32: 1e-5, F16: 2**-9, BF16: 2**-7}


@pytest.fixture
def randn():
    generator = torch.Generator().manual_seed(5)
    return lambda *sizes, dtype: torch.randn(*sizes, generator=generator).to(dtype)


def drawn(randn, shape, dtype):
    batch, queries, keys, kv_heads, group, width, value = shape
    q = randn(batch, queries, kv_heads * group, width, dtype=dtype)
    k = randn(batch, keys, kv_heads, width, dtype=dtype)
    return q, k, randn(batch, keys, kv_heads, value, dtype=dtype), width**-0.5


def judge(found, q, k, v, mask, scale, **scalars):
    wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
    want = operator.reference(q.double(), k.double(), v.double(), wide, scale, **scalars)
    assert found.is_contiguous()
    assert found.dtype is q.dtype
    near = NEAR[q.dtype]
    torch.testing.assert_close(found.double(), want, rtol=near, atol=near)
    assert not found[(want == 0).all(-1)].any()


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_values(randn, shape, scalars, dtype):
    q, k, v, scale = drawn(randn, shape, dtype)
    judge(attention_torch(q, k, v, None, scale, **scalars), q, k, v, None, scale, **scalars)


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("broadcast", [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize(("kind", "dtype"), [(torch.bool, F32), (torch.bool, BF16), (F16, F16)])
def test_values_under_a_mask(randn, broadcast, kind, dtype, scalars):
    q, k, v, scale = drawn(randn, (2, 6, 9, 2, 3, 32, 32), dtype)
    sizes = [1 if one else n for one, n in zip(broadcast, (2, 6, 6), strict=True)]
    mask = randn(*sizes, 9, dtype=F32)
    mask = mask > -1 if kind is torch.bool else mask.to(kind)
    mask[0, :, 0] = False if kind is torch.bool else -torch.inf  # rows that see nothing
    found = attention_torch_masked(q, k, v, mask, scale, **scalars)
    judge(found, q, k, v, mask, scale, **scalars)


@pytest.mark.parametrize("sizes", [(2, 10, 0), (2, 0, 3), (0, 9, 3)])
def test_without_keys_or_queries(randn, sizes):
    q, k, v, _ = drawn(randn, (*sizes, 2, 2, 16, 16), F32)
    mask = torch.ones(sizes[0], 1, *sizes[1:], dtype=torch.bool)
    found = attention_torch(q, k, v, None, 1.0), attention_torch_masked(q, k, v, mask, 1.0)
    for y in found:
        assert y.shape == q.shape
        assert not y.any()


def test_keys_that_no_query_sees_may_hold_anything(randn):
    q, k, v, scale = drawn(randn, (1, 5, 20, 1, 2, 32, 32), F32)
    clean = attention_torch(q, k, v, None, scale, causal=True, window=3)
    mask = torch.ones(1, 1, 1, 20, dtype=torch.bool)
    mask[..., 4:9] = False
    masked = attention_torch_masked(q, k, v, mask, scale)
    k[0, 4:9] = torch.nan
    assert torch.equal(attention_torch(q, k, v, None, scale, causal=True, window=3), clean)
    assert torch.equal(attention_torch_masked(q, k, v, mask, scale), masked)


def test_autocast_changes_nothing(randn):
    q, k, v, scale = drawn(randn, (1, 16, 16, 2, 1, 32, 32), F32)
    y = attention_torch(q, k, v, None, scale)
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(attention_torch(q, k, v, None, scale), y)


def test_refusals(randn):
    q, k, v, _ = drawn(randn, (2, 9, 7, 2, 2, 32, 32), F32)
    seen = torch.ones(2, 4, 9, 7, dtype=torch.bool)
    for tensors, words in (
        ((q.half(), k, v), "float16"),
        ((q.double(), k.double(), v.double()), "float64"),
        ((q[:1], k, v), "fit together"),
        ((q[:, :, :3], k, v), "divide"),
        ((q, k[0], v), "dims"),
        ((q, k, v[:, :3]), "fit together"),
    ):
        with pytest.raises(DomainError, match=words):
            attention_torch(*tensors, None, 1.0)
        with pytest.raises(DomainError, match=words):
            attention_torch_masked(*tensors, seen, 1.0)
    for mask in (seen[0], seen[..., :3], seen[:, :2], seen[:, :, :4], seen.int(), seen.half()):
        with pytest.raises(DomainError, match="mask"):
            attention_torch_masked(q, k, v, mask, 1.0)
    with pytest.raises(DomainError, match="no mask"):
        attention_torch_masked(q, k, v, None, 1.0)
    with pytest.raises(DomainError, match="a mask"):
        attention_torch(q, k, v, seen, 1.0)
    with pytest.raises(DomainError, match="window is -1"):
        attention_torch(q, k, v, None, 1.0, window=-1)
    with pytest.raises(DomainError, match="soft_cap is 2"):
        attention_torch_masked(q, k, v, seen, 1.0, soft_cap=2.0)
