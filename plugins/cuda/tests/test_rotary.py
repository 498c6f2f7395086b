from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.catalogue import operators
from trivet.errors import DomainError
from trivet.kernels.triton.tuning.trials import forget
from trivet_triton.kernels import rotary, rotary_kv_cache
from trivet_triton.kernels.kv_cache import kv_cache_write

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ROTARY = operators()["rotary_embedding"].reference
TOLERANCE = {F32: 2e-6, BF16: 2**-7, F16: 2**-10}
HEADS, KV = 6, 2


def randn(*sizes, dtype=F32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def angles(tokens, half):
    angle = 3 * randn(tokens, half, seed=5)
    return angle.cos(), angle.sin()


def views(packed, dim):
    """Views of q, k and v in the rows of one packed projection."""
    parts = packed.split([HEADS * dim, KV * dim, KV * dim], -1)
    return [p.unflatten(-1, (-1, dim)) for p in parts]


def close(mine, want):
    mine, want = mine.float(), want.float()
    torch.testing.assert_close(mine, want, rtol=0, atol=4 * TOLERANCE[F32])


def near(mine, want):
    rtol = TOLERANCE[want.dtype]
    torch.testing.assert_close(mine, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize(
    ("dim", "half", "dtype"),
    [
        (64, 32, F32),
        (128, 64, BF16),
        (80, 16, F16),
        (48, 24, BF16),
        (20, 5, F32),
        (6, 3, F16),
    ],
)
def test_split_views_of_a_packed_projection(dim, half, pairing, dtype):
    packed = randn(3, (HEADS + 2 * KV) * dim, dtype=dtype)
    q, k, v = views(packed, dim)
    cos, sin = angles(3, half)
    want = ROTARY(q, k, cos, sin, pairing)
    turned = rotary.rotary_embedding(q, k, cos, sin, pairing)
    for mine, right, t in zip(turned, want, (q, k), strict=True):
        assert mine.is_contiguous()
        near(mine, right)
        assert torch.equal(mine[..., 2 * half :], t[..., 2 * half :])
    values = v.clone()
    rotary.rotary_embedding_(q, k, cos, sin, pairing)
    assert torch.equal(q, turned[0])
    assert torch.equal(k, turned[1])
    assert torch.equal(v, values)


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
def test_without_k(pairing):
    q, (cos, sin) = randn(2, 3, 64), angles(2, 24)
    (mine,) = rotary.rotary_embedding(q, None, cos, sin, pairing)
    near(mine, ROTARY(q, None, cos, sin, pairing)[0])
    rotary.rotary_embedding_(q, None, cos, sin, pairing)
    assert torch.equal(q, mine)


def test_leading_dims_shared_angles_and_rows_apart():
    q, (cos, sin) = randn(2, 3, 4, 32), angles(6, 16)
    cos, sin = cos.view(2, 3, 16), sin.view(2, 3, 16)
    expected = rotary.rotary_embedding(q, None, cos, sin)[0]
    near(expected, ROTARY(q, None, cos, sin)[0])
    both = torch.cat((cos, sin), -1)
    apart = rotary.rotary_embedding(q, None, both[..., :16], both[..., 16:])[0]
    assert torch.equal(apart, expected)
    one = cos[:1, :1].expand(2, 3, 16)
    shared = rotary.rotary_embedding(q, None, one, one)[0]
    near(shared, ROTARY(q, None, one, one)[0])
    long = torch.as_strided(q, (6, 1, 4, 32), (128, 7, 32, 1))  # a dim of size 1 has any stride
    again = rotary.rotary_embedding(long, None, cos.view(6, 1, 16), sin.view(6, 1, 16))[0]
    assert torch.equal(again.view_as(expected), expected)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_special_values_touch_their_pair_only(dtype):
    q, (cos, sin) = randn(1, 2, 64, dtype=dtype), angles(1, 32)
    q[0, 0, 5] = torch.nan
    q[0, 1, 40] = torch.inf
    y = rotary.rotary_embedding(q, None, cos, sin)[0]
    assert y[0, 0].isnan().nonzero().flatten().tolist() == [5, 37]
    assert y[0, 1].isinf().nonzero().flatten().tolist() == [8, 40]


def test_every_config_of_the_space_gives_the_same_bits(monkeypatch):
    packed, (cos, sin) = randn(2, (HEADS + 2 * KV) * 16, dtype=BF16), angles(2, 8)
    q, k, _ = views(packed, 16)
    expected = rotary.rotary_embedding(q, k, cos, sin)
    key = {"heads": HEADS, "kv_heads": KV, "half": 8}
    parts = {c["parts"]: c for c in rotary.space(key, 2)}
    assert len(parts) > 2
    for config in parts.values():
        monkeypatch.setattr(rotary._TUNED, "buckets", lambda *_, c=config: ((9e9, c),))
        forget("trivet_triton.kernels")
        mine = rotary.rotary_embedding(q, k, cos, sin)
        assert all(map(torch.equal, mine, expected))
    forget("trivet_triton.kernels")


def test_no_tokens():
    y = rotary.rotary_embedding(
        torch.ones(0, 2, 8), torch.ones(0, 1, 8), torch.ones(0, 4), torch.ones(0, 4)
    )
    assert [t.shape for t in y] == [(0, 2, 8), (0, 1, 8)]


def test_an_unknown_pairing_is_refused():
    q, (cos, sin) = randn(3, 2, 8), angles(3, 4)
    for call in (rotary.rotary_embedding, rotary.rotary_embedding_):
        with pytest.raises(DomainError, match="pairing is 'gptj'") as raised:
            call(q, None, cos, sin, "gptj")
        assert "'neox' or 'interleaved'" in raised.value.fix


def written(tokens, dim, half, dtype, cached=None, block_size=4):
    packed = randn(tokens, (HEADS + 2 * KV) * dim, dtype=dtype)
    blocks = tokens // block_size + 2
    caches = randn(2, blocks, block_size, KV, dim, dtype=cached or dtype, seed=8)
    slots = randn(blocks * block_size, seed=9).argsort()[:tokens]
    slots[1::3] = -1
    return packed, *angles(tokens, half), caches, slots


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize(
    ("dim", "half", "dtype", "cached"),
    [
        (64, 32, F32, F32),
        (128, 64, BF16, BF16),
        (80, 16, F16, F16),
        (20, 5, F32, BF16),
        (6, 3, BF16, F16),
    ],
)
def test_every_bit_of_the_fused_call_is_that_of_the_two(dim, half, pairing, dtype, cached):
    packed, cos, sin, caches, slots = written(5, dim, half, dtype, cached)
    expected, wanted = packed.clone(), caches.clone()
    q, k, v = views(expected, dim)
    keys = k.clone()
    rotary.rotary_embedding_(q, keys, cos, sin, pairing)
    kv_cache_write(keys, v, *wanted, slots)
    assert not torch.equal(wanted, caches)
    rotary_kv_cache.rotary_kv_cache_write(*views(packed, dim), cos, sin, *caches, slots, pairing)
    assert torch.equal(caches, wanted)
    assert torch.equal(packed, expected), "q is turned, k and v stay as they were"


def test_slots_outside_of_the_cache_are_not_written():
    packed, cos, sin, caches, slots = written(4, 16, 8, F32)
    before = packed.clone()
    slots[:] = torch.tensor([-1, caches[0, ..., 0, 0].numel(), 1 << 40, -5])
    untouched = caches.clone()
    rotary_kv_cache.rotary_kv_cache_write(*views(packed, 16), cos, sin, *caches, slots)
    assert torch.equal(caches, untouched)
    turned = rotary.rotary_embedding(views(before, 16)[0], None, cos, sin)[0]
    assert torch.equal(views(packed, 16)[0], turned)


def test_the_fused_call_refuses_other_layouts_and_pairings():
    packed, cos, sin, caches, slots = written(2, 16, 8, F32)
    call = rotary_kv_cache.rotary_kv_cache_write
    with pytest.raises(DomainError, match="layout"):
        call(*views(packed, 16), cos, sin, *caches, slots, "neox", "HND")
    with pytest.raises(DomainError, match="rotary_kv_cache_write: pairing"):
        call(*views(packed, 16), cos, sin, *caches, slots, "gptj")
    call(*views(packed[:0], 16), cos[:0], sin[:0], *caches, slots[:0])
