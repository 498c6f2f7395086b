from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu import isa
from trivet_cpu.compiled.attention import attention, paged_attention
from trivet_cpu.on_torch.dense_attention import attention_torch, attention_torch_masked

F32, BF16 = torch.float32, torch.bfloat16
# batch, queries, keys, kv heads, group, head_dim: square, cross, more queries than keys, decode
SHAPES = [
    (2, 70, 70, 2, 1, 64),
    (2, 10, 130, 3, 3, 64),
    (2, 12, 5, 1, 2, 20),
    (3, 1, 65, 2, 4, 128),
    (1, 33, 40, 2, 5, 80),
]
SCALARS = [
    {},
    {"causal": True},
    {"causal": True, "window": 7},
    {"window": 3},
    {"soft_cap": 2.0},
    {"causal": True, "window": 66, "soft_cap": 30.0},
    {"window": 2**63 - 1},
]
NEAR = {F32: {"rtol": 1e-5, "atol": 1e-5}, BF16: {"rtol": 2**-7, "atol": 2**-8}}


def inputs(randn, shape, dtype, value_dim=0):
    batch, queries, keys, kv_heads, group, width = shape
    q = randn(batch, queries, kv_heads * group, width, dtype=dtype)
    k = randn(batch, keys, kv_heads, width, dtype=dtype)
    return q, k, randn(batch, keys, kv_heads, value_dim or width, dtype=dtype)


def in_float64(q, k, v, mask=None, causal=False, window=0, soft_cap=0.0):
    group = q.shape[2] // k.shape[2]
    k, v = (t.double().repeat_interleave(group, 2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k) * q.shape[-1] ** -0.5
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    ahead = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
    ahead = ahead - (k.shape[1] - q.shape[1])  # the last query and the last key are neighbours
    hidden = torch.zeros(scores.shape, dtype=torch.bool)
    if causal:
        hidden = hidden | (ahead > 0)
    if window:
        hidden = hidden | (ahead.abs() >= window)
    if mask is not None and mask.dtype is torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = scores + mask.double()
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def scale(q):
    return q.shape[-1] ** -0.5


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values_of_the_tiles(level, randn, shape, scalars, dtype):
    q, k, v = inputs(randn, shape, dtype)
    y = attention(q, k, v, None, scale(q), **scalars)
    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), in_float64(q, k, v, **scalars), **NEAR[dtype])


@pytest.mark.parametrize("scalars", SCALARS[:2])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1] > 8])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values_of_torchs_product(randn, shape, scalars, dtype):
    q, k, v = inputs(randn, shape, dtype, value_dim=24 if shape[1] == 10 else 0)
    y = attention_torch(q, k, v, None, scale(q), **scalars)
    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), in_float64(q, k, v, **scalars), **NEAR[dtype])


@pytest.mark.parametrize("scalars", SCALARS[:4])
@pytest.mark.parametrize("broadcast", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("kind", [torch.bool, F32, BF16])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values_under_a_mask(randn, broadcast, kind, scalars, dtype):
    q, k, v = inputs(randn, (2, 6, 9, 2, 3, 32), dtype)
    sizes = [1 if one else n for one, n in zip(broadcast, (2, 6, 6), strict=True)]
    mask = randn(*sizes, 9).to(kind) if kind is not torch.bool else randn(*sizes, 9) > -1
    mask[0, :, 0] = False if kind is torch.bool else -torch.inf  # rows that see nothing
    y = attention_torch_masked(q, k, v, mask, scale(q), **scalars)
    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), in_float64(q, k, v, mask, **scalars), **NEAR[dtype])
    assert not y[0, 0].any()


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_query_of_the_tiles_gives_the_same_bits_in_any_batch(
    level, randn, threads, scalars, dtype
):
    q, k, v = inputs(randn, (3, 70, 70, 2, 3, 64), dtype)
    y = attention(q, k, v, None, scale(q), **scalars)
    with threads(3):
        assert torch.equal(attention(q, k, v, None, scale(q), **scalars), y)
    for i in (1, 31, 69):  # with the keys of later queries left out it is the last one
        keys = slice(0, i + 1) if scalars.get("causal") else slice(None)
        rows = slice(i, i + 1) if scalars.get("causal") else slice(i, None)
        alone = attention(q[1:2, rows], k[1:2, keys], v[1:2, keys], None, scale(q), **scalars)
        assert torch.equal(alone[0, 0], y[1, i]), i


def test_the_tiles_of_pages_give_the_same_bits(level, randn):
    q, k, v = inputs(randn, (2, 5, 64, 2, 2, 64), BF16)
    table = torch.arange(8).view(2, 4).int()
    start, lens = torch.tensor([0, 5, 10]).int(), torch.tensor([64, 64]).int()
    k_pages, v_pages = (t.reshape(8, 16, 2, 64) for t in (k, v))
    paged = paged_attention(
        q.flatten(0, 1), k_pages, v_pages, table, start, lens, 5, 64, scale(q), []
    )
    dense = attention(q, k, v, None, scale(q), causal=True)
    assert torch.equal(dense.flatten(0, 1), paged)


@pytest.mark.parametrize("which", [attention, attention_torch])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_views_of_a_packed_projection(randn, which, dtype):
    packed = randn(2, 11, 3, 4, 32, dtype=dtype)
    q, k, v = packed.unbind(2)
    apart = which(*(t.contiguous() for t in (q, k, v)), None, scale(q), causal=True)
    assert torch.equal(which(q, k, v, None, scale(q), causal=True), apart)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(which(*heads_first, None, scale(q), causal=True), apart)
    narrow = [t.mT.contiguous().mT for t in (q, k, v)]
    torch.testing.assert_close(which(*narrow, None, scale(q), causal=True), apart, **NEAR[dtype])


@pytest.mark.parametrize("sizes", [(2, 10, 0), (2, 0, 3), (0, 9, 3)])
def test_without_keys_or_queries(level, randn, sizes):
    batch, queries, keys = sizes
    q, k, v = inputs(randn, (batch, queries, keys, 2, 2, 16), F32)
    mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    results = [attention(q, k, v, None, 1.0), attention_torch_masked(q, k, v, mask, 1.0)]
    if queries:
        results.append(attention_torch(q, k, v, None, 1.0))
    for y in results:
        assert y.shape == q.shape
        assert not y.any()


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_only_keys_that_are_seen_can_spoil_a_row(level, randn, dtype):
    q, k, v = inputs(randn, (1, 20, 20, 1, 2, 32), dtype)
    clean = attention_torch(q, k, v, None, scale(q), causal=True)
    k[0, 10] = torch.nan
    mask = torch.ones(1, 1, 1, 20, dtype=torch.bool)
    mask[..., 10] = False
    for y in (
        attention(q, k, v, None, scale(q), causal=True),
        attention_torch(q, k, v, None, scale(q), causal=True),
    ):
        torch.testing.assert_close(y[:, :10], clean[:, :10], **NEAR[dtype])
        assert y[:, 10:].isnan().all()
    assert attention_torch_masked(q, k, v, mask, scale(q)).isfinite().all()
    k[:] = -torch.inf  # seen, but no weight anywhere: softmax is NaN, and so is the result
    q = q.abs()
    assert attention(q, k, v, None, scale(q)).isnan().all()
    assert attention_torch(q, k, v, None, scale(q)).isnan().all()
    assert attention_torch_masked(q, k, v, mask, scale(q)).isnan().all()


def test_autocast_and_gradients_change_nothing(randn):
    q, k, v = inputs(randn, (1, 16, 16, 2, 1, 32), F32)
    y = attention_torch(q, k, v, None, scale(q))
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(attention_torch(q, k, v, None, scale(q)), y)
        assert attention(q, k, v, None, scale(q)).dtype is F32
    leaf = q.clone().requires_grad_()
    assert torch.equal(attention_torch(leaf, k, v, None, scale(q)).detach(), y)


def test_levels_agree(randn):
    q, k, v = inputs(randn, (2, 40, 70, 2, 2, 64), F32)
    results = []
    for name in isa.levels():
        with isa.using(name):
            results.append(attention(q, k, v, None, scale(q), window=9))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-5)


def test_refusals(randn):
    q, k, v = inputs(randn, (2, 9, 7, 2, 2, 32), F32)
    seen = torch.ones(2, 4, 9, 7, dtype=torch.bool)
    same = [
        ((q.half(), k, v), "float16|dtype"),
        ((q, k.bfloat16(), v), "one dtype|bfloat16"),
        ((q[:1], k, v), "agree|fit together"),
        ((q[:, :, :3], k, v), "divide"),
        ((q[..., :16], k, v), "width|fit together"),
        ((q, k[0], v), "dims"),
        ((q, k, v[:, :3]), "agree|fit together"),
    ]
    for tensors, words in same:
        for call in (
            lambda t: attention(*t, None, 1.0),
            lambda t: attention_torch(*t, None, 1.0),
            lambda t: attention_torch_masked(*t, seen, 1.0),
        ):
            with pytest.raises(DomainError, match=words):
                call(tensors)
    for mask in (seen[0], seen[..., :3], seen[:, :2], seen[:, :, :4], seen.int(), seen.half()):
        with pytest.raises(DomainError, match="mask"):
            attention_torch_masked(q, k, v, mask, 1.0)
    with pytest.raises(DomainError, match="no mask"):
        attention_torch_masked(q, k, v, None, 1.0)
    for which in (attention, attention_torch):
        with pytest.raises(DomainError, match="mask"):
            which(q, k, v, seen, 1.0)
        with pytest.raises(DomainError, match="window"):
            which(q, k, v, None, 1.0, window=-1)
    with pytest.raises(DomainError, match="window"):
        attention_torch(q, k, v, None, 1.0, window=2)
    with pytest.raises(DomainError, match="window"):
        attention_torch_masked(q, k, v, seen, 1.0, window=-1)
    with pytest.raises(DomainError, match="soft_cap"):
        attention_torch(q, k, v, None, 1.0, soft_cap=1.0)
    with pytest.raises(DomainError, match="q has shape"):
        attention_torch(q[:, :8], k, v, None, 1.0)
