from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.catalogue.dense_attention import attention as operator
from trivet.errors import DomainError
from trivet_cuda.target import TARGETS
from trivet_triton.kernels import dense_attention as module
from trivet_triton.kernels.dense_attention import attention, pieces
from trivet_triton.kernels.dense_attention_kernel import ROW_MASK, TILE_MASK

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# batch, queries, keys, kv heads, group, head_dim, value_dim
SHAPES = [
    (2, 40, 40, 2, 1, 64, 64),
    (1, 30, 150, 1, 3, 64, 24),
    (2, 12, 5, 1, 2, 20, 17),
    (1, 1, 65, 2, 4, 128, 128),
]
SCALARS = [
    {},
    {"causal": True},
    {"causal": True, "window": 7},
    {"window": 3},
    {"causal": True, "soft_cap": 2.0},
]
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
    torch.testing.assert_close(found.double(), want, rtol=near, atol=near, equal_nan=True)
    assert not found[(want == 0).all(-1)].any()


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_values(randn, shape, scalars, dtype):
    q, k, v, scale = drawn(randn, shape, dtype)
    judge(attention(q, k, v, None, scale, **scalars), q, k, v, None, scale, **scalars)


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("broadcast", [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize(
    ("kind", "dtype"), [(torch.bool, F32), (torch.bool, BF16), (F16, F16), (F32, BF16)]
)
def test_values_under_a_mask(randn, broadcast, kind, dtype, scalars):
    q, k, v, scale = drawn(randn, (2, 6, 70, 2, 3, 32, 32), dtype)
    sizes = [1 if one else n for one, n in zip(broadcast, (2, 6, 6), strict=True)]
    mask = randn(*sizes, 70, dtype=F32)
    mask = mask > -1 if kind is torch.bool else mask.to(kind)
    mask[0, :, 0] = False if kind is torch.bool else -torch.inf  # rows that see nothing
    mask[..., 64] = True if kind is torch.bool else torch.finfo(kind).min
    judge(attention(q, k, v, mask, scale, **scalars), q, k, v, mask, scale, **scalars)


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("mask", [None, torch.arange(20)[None, None, None] % 3 > 0])
def test_scales_that_are_not_positive(randn, scale, mask):
    q, k, v, _ = drawn(randn, (1, 5, 20, 1, 2, 32, 32), F32)
    judge(attention(q, k, v, mask, scale), q, k, v, mask, scale)


def test_large_scores_keep_the_difference_of_the_largest(randn):
    q, k, v, _ = drawn(randn, (1, 9, 40, 1, 1, 32, 32), F32)
    q, k = (t.round() * 1024 for t in (q, k))  # products are exact
    mask = torch.zeros(1, 1, 1, 40)
    for given in (None, mask == 0, mask):
        judge(attention(q, k, v, given, 2.0**-10), q, k, v, given, 2.0**-10)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind", [torch.bool, F32])
def test_a_key_that_is_no_number(randn, number, hidden, kind):
    q, k, v, scale = drawn(randn, (1, 5, 70, 1, 2, 32, 32), F32)
    mask = torch.ones(1, 1, 5, 70, dtype=torch.bool)
    mask[..., 4:] = mask[:, :, 3] = not hidden
    mask[:, :, 3, 4] = mask[:, :, 1, 0] = True  # row 3 sees that key alone
    q, k[0, 4] = q.abs(), number
    given = mask if kind is torch.bool else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    judge(attention(q, k, v, given, scale), q, k, v, given, scale)
    if hidden:
        assert not attention(q, k, v, given, scale)[0, :3].isnan().any()


def test_keys_that_no_query_sees_may_hold_anything(randn):
    q, k, v, scale = drawn(randn, (1, 5, 90, 1, 2, 32, 32), F32)
    mask = torch.ones(1, 1, 1, 90, dtype=torch.bool)
    mask[..., 4:9] = False
    clean = attention(q, k, v, None, scale, causal=True, window=3)
    masked = attention(q, k, v, mask, scale)
    k[0, 4:9] = torch.nan
    assert torch.equal(attention(q, k, v, mask, scale), masked)
    k[0, :80] = v[0, :80] = torch.nan
    assert torch.equal(attention(q, k, v, None, scale, causal=True, window=3), clean)


def test_any_strides_and_starts_give_the_same(randn):
    q, k, v, scale = drawn(randn, (2, 9, 33, 2, 2, 32, 16), BF16)
    mask = randn(2, 4, 9, 33, dtype=F32) > -1
    want = attention(q, k, v, mask, scale)

    def heads_first(t):
        return t.transpose(1, 2).contiguous().transpose(1, 2)

    def beside(t):
        return torch.cat((t[..., :1], t, t), -1)[..., 1 : t.shape[-1] + 1]

    def features_apart(t):
        return t.transpose(2, 3).contiguous().transpose(2, 3)

    for laid in (heads_first, beside, features_apart):
        for given in (mask, laid(mask), laid(mask).expand(2, 4, 9, 33)):
            assert torch.equal(attention(laid(q), laid(k), laid(v), given, scale), want)
    one = mask[:1, :1, :1]
    assert torch.equal(
        attention(q, k, v, one.expand(2, 4, 9, 33), scale), attention(q, k, v, one, scale)
    )


@pytest.mark.parametrize("sizes", [(2, 10, 0), (2, 0, 3), (0, 9, 3)])
def test_without_keys_or_queries(randn, sizes):
    q, k, v, _ = drawn(randn, (*sizes, 2, 2, 16, 8), F32)
    mask = torch.ones(sizes[0], 1, *sizes[1:], dtype=torch.bool)
    for y in (attention(q, k, v, None, 1.0), attention(q, k, v, mask, 1.0)):
        assert y.shape == (*q.shape[:3], 8)
        assert not y.any()


def test_a_group_is_cut_where_its_heads_leave_rows_idle():
    assert pieces(1, 16) == (1, 1)
    assert pieces(8, 64) == (1, 8)
    assert pieces(7, 128) == (1, 7)
    assert pieces(71, 128) == (3, 24)  # 5 tokens of 24 heads, of which one is idle
    for group in range(1, 200):
        for rows in (16, 32, 64, 128):
            count, pack = pieces(group, rows)
            assert (count - 1) * pack < group <= count * pack
            assert rows // pack * pack * group >= rows * count * pack * 7 / 8


def test_a_mask_is_read_as_a_row_or_in_tiles_and_copied_only_off_its_alignment():
    mask = torch.ones(2, 4, 9, 32, dtype=torch.bool)
    assert module._laid(mask)[1] is mask
    assert module._laid(mask)[0] == TILE_MASK
    kind, laid, steps = module._laid(mask[:, :1, :1, :31])
    assert (kind, laid.data_ptr(), steps) == (ROW_MASK, mask.data_ptr(), (4 * 9 * 32, 0, 0))
    _, laid, steps = module._laid(mask[:1, ..., :31].expand(2, 4, 9, 31))
    assert (laid.shape, steps) == ((1, 4, 9, 32), (0, 9 * 32, 32))


@pytest.mark.parametrize("arch", TARGETS)
def test_variants_have_names_of_their_own_and_fit_the_memory_that_programs_share(arch):
    found = list(module.variants(arch))
    assert len({name for name, _ in found}) == len(found)
    key = {"dtype": "bfloat16", "head_dim": 128, "mask": TILE_MASK}
    for shared in (99, 163, 227):
        configs = [c for _, c in module.default({**key, "shared": shared})]
        assert configs[-1]["BLOCK_M"] == 128
        tried = list(module.space({**key, "shared": shared}, 4096))
        assert {c["BLOCK_M"] for c in tried} >= {c["BLOCK_M"] for c in configs}


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
        ((q, k.to("meta"), v), "not all on cpu"),
        ((q, k, v.repeat(1, 1, 1, 9)), "288"),
    ):
        with pytest.raises(DomainError, match=words):
            attention(*tensors, None, 1.0)
    for mask in (seen[0], seen[..., :3], seen[:, :2], seen[:, :, :4], seen.int(), seen.to("meta")):
        with pytest.raises(DomainError, match=r"mask|not all on cpu"):
            attention(q, k, v, mask, 1.0)
    with pytest.raises(DomainError, match="window is -1"):
        attention(q, k, v, None, 1.0, window=-1)
    with pytest.raises(DomainError, match="soft_cap is -2"):
        attention(q, k, v, None, 1.0, soft_cap=-2.0)
