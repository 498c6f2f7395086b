from __future__ import annotations

import itertools

import pytest
import torch

from stand_ins import OPS, make_device, rotary_over
from trivet.selection.derive import derive

WRITE, ROTARY = OPS["kv_cache_write"], OPS["rotary_embedding"]


def caches(blocks=4, size=4, heads=2, width=8, dtype=torch.float32):
    k = torch.arange(blocks * size * heads * width, dtype=torch.float64)
    k = k.view(blocks, size, heads, width).to(dtype)
    return k, -k


@pytest.mark.parametrize("slots", list(itertools.permutations([-1, 0, 5, 15], 3)))
def test_slots_below_zero_are_skipped_and_all_others_written(slots):
    k, v = torch.randn(2, 3, 2, 8)
    k_cache, v_cache = caches()
    expected = [c.clone() for c in (k_cache, v_cache)]
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[0].view(16, 2, 8)[slot] = k[token]
            expected[1].view(16, 2, 8)[slot] = v[token]
    assert WRITE.reference(k, v, k_cache, v_cache, torch.tensor(slots)) is None
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


@pytest.mark.parametrize("slots", [[], [-1], [-1, -7, -1]])
def test_nothing_to_write_changes_nothing(slots):
    k, v = torch.randn(2, len(slots), 2, 8)
    k_cache, v_cache = caches()
    before = k_cache.clone(), v_cache.clone()
    WRITE.reference(k, v, k_cache, v_cache, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(k_cache, before[0])
    assert torch.equal(v_cache, before[1])


def test_a_skipped_token_may_hold_anything():
    k = torch.full((2, 2, 8), torch.nan)
    k[1] = 1.0
    k_cache, v_cache = caches()
    WRITE.reference(k, k, k_cache, v_cache, torch.tensor([-1, 3]))
    assert k_cache.isfinite().all()
    assert v_cache.isfinite().all()


def test_views_of_a_packed_qkv_and_another_cache_dtype():
    packed = torch.randn(3, 2 + 2 + 2, 8)
    k_cache, v_cache = caches(dtype=torch.bfloat16)
    WRITE.reference(packed[:, 2:4], packed[:, 4:], k_cache, v_cache, torch.tensor([1, 2, 15]))
    assert torch.equal(k_cache.view(16, 2, 8)[15], packed[2, 2:4].bfloat16())
    assert torch.equal(v_cache.view(16, 2, 8)[1], packed[0, 4:].bfloat16())


def rotary(q_heads=4, k_heads=2, width=16, half=4, tokens=5, dtype=torch.float32):
    rng = torch.Generator().manual_seed(2)
    qkv = torch.randn(tokens, q_heads + 2 * k_heads, width, generator=rng).to(dtype)
    angle = torch.rand(tokens, half, generator=rng) * 6
    return qkv, angle.cos(), angle.sin()


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_place_on_split_views_of_a_packed_qkv(pairing, dtype):
    qkv, cos, sin = rotary(dtype=dtype)
    expected = ROTARY.reference(qkv[:, :4].clone(), qkv[:, 4:6].clone(), cos, sin, pairing)
    value = qkv[:, 6:].clone()
    in_place = derive(ROTARY, "functional", "inplace", ROTARY.reference).function
    for function in (in_place, make_device(rotary_over).ops.rotary_embedding_):
        packed = qkv.clone()
        assert function(packed[:, :4], packed[:, 4:6], cos, sin, pairing) is None
        assert torch.equal(packed[:, :4], expected[0])
        assert torch.equal(packed[:, 4:6], expected[1])
        assert torch.equal(packed[:, 6:], value), "the values are nobody's business"


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
def test_what_is_not_rotated_passes_bit_for_bit(pairing):
    qkv, cos, sin = rotary(half=3)
    qkv[0, 0, 6:] = torch.nan
    qkv[1, 0, 7] = -0.0
    q, k = ROTARY.reference(qkv[:, :4], qkv[:, 4:6], cos, sin, pairing)
    assert torch.equal(q[..., 6:].contiguous().view(torch.int32),
                       qkv[:, :4, 6:].contiguous().view(torch.int32))  # fmt: skip
    assert torch.equal(k[..., 6:], qkv[:, 4:6, 6:])
    assert not torch.equal(k[..., :6], qkv[:, 4:6, :6])


def test_pairs_are_halves_or_neighbours():
    q = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    cos, sin = torch.zeros(1, 2), torch.ones(1, 2)  # a quarter turn: (a, b) -> (-b, a)
    (neox,) = ROTARY.reference(q, None, cos, sin)
    (neighbours,) = ROTARY.reference(q, None, cos, sin, "interleaved")
    assert neox.flatten().tolist() == [-3.0, -4.0, 1.0, 2.0]
    assert neighbours.flatten().tolist() == [-2.0, 1.0, -4.0, 3.0]


def test_without_keys_there_is_one_result():
    qkv, cos, sin = rotary()
    assert len(ROTARY.reference(qkv[:, :4], None, cos, sin)) == 1
    given = {"q": qkv[:, :4], "k": None, "cos": cos, "sin": sin, "pairing": "neox"}
    assert ROTARY.result_meta(given) == [((5, 4, 16), torch.float32)]


def test_no_rotation_is_the_identity_and_norms_are_kept():
    qkv, cos, sin = rotary(half=8)
    q = qkv[:, :4]
    (same,) = ROTARY.reference(q, None, torch.ones_like(cos), torch.zeros_like(sin))
    assert torch.equal(same, q)
    (turned,) = ROTARY.reference(q, None, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
