from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.compiled.kv_cache import kv_cache_write
from trivet_cpu.compiled.rotary import rotary_embedding_
from trivet_cpu.compiled.rotary_kv_cache import rotary_kv_cache_write

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
HEADS, KV = 6, 2


def views(packed, dim):
    """Views of q, k and v in the rows of one packed projection."""
    parts = packed.split([HEADS * dim, KV * dim, KV * dim], -1)
    return [p.unflatten(-1, (-1, dim)) for p in parts]


def make(randn, tokens, dim, half, dtype, block_size=8):
    packed = randn(tokens, (HEADS + 2 * KV) * dim, dtype=dtype)
    angle = 3 * randn(tokens, half)
    blocks = (2 * tokens) // block_size + 1
    caches = randn(2, blocks, block_size, KV, dim, dtype=dtype)
    slots = randn(blocks * block_size).argsort()[:tokens]
    slots[2::5] = -1
    return packed, angle.cos(), angle.sin(), caches, slots


def in_two_calls(q, k, v, cos, sin, k_cache, v_cache, slots, pairing):
    """The sequence that it stands for; k is a copy, since only the sequence changes it."""
    keys = k.clone()
    rotary_embedding_(q, keys, cos, sin, pairing)
    kv_cache_write(keys, v, k_cache, v_cache, slots)


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize(("dim", "half"), [(64, 32), (128, 64), (80, 20), (6, 3), (576, 280)])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_every_bit_is_that_of_the_two_operators(level, randn, dim, half, pairing, dtype):
    packed, cos, sin, caches, slots = make(randn, 11, dim, half, dtype)
    expected, wanted = packed.clone(), caches.clone()
    in_two_calls(*views(expected, dim), cos, sin, *wanted, slots, pairing)
    assert not torch.equal(wanted, caches)
    rotary_kv_cache_write(*views(packed, dim), cos, sin, *caches, slots, pairing)
    assert torch.equal(caches, wanted)
    assert torch.equal(packed, expected), "q is turned, k and v stay as they were"


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_token_depends_on_no_other_and_on_no_thread(level, randn, threads, dtype):
    packed, cos, sin, caches, slots = make(randn, 200, 64, 32, dtype)
    made = []
    for count in (1, 3):
        mine, own = packed.clone(), caches.clone()
        with threads(count):
            rotary_kv_cache_write(*views(mine, 64), cos, sin, *own, slots)
        made.append((mine, own))
    assert all(map(torch.equal, *made))
    one, own = packed.clone(), caches.clone()
    for i in range(200):
        row = slice(i, i + 1)
        rotary_kv_cache_write(*views(one[row], 64), cos[row], sin[row], *own, slots[row])
    assert torch.equal(one, made[0][0])
    assert torch.equal(own, made[0][1])


def test_a_skipped_token_has_its_query_turned_and_nothing_written(level, randn):
    packed, cos, sin, caches, slots = make(randn, 4, 32, 16, F32)
    before, start = packed.clone(), caches.clone()
    rotary_kv_cache_write(*views(packed, 32), cos, sin, *caches, torch.full_like(slots, -7))
    assert torch.equal(caches, start)
    q, k, v = views(packed, 32)
    old = views(before, 32)
    assert not torch.equal(q, old[0])
    assert torch.equal(k, old[1])
    assert torch.equal(v, old[2])


def test_leading_dims_heads_apart_and_strided_slots(level, randn):
    q, wide, v = randn(2, 3, 4, 16), randn(2, 3, 4, 16), randn(2, 3, 4, 16)
    k, v = wide[:, :, ::2], v[:, :, 1::2]
    slots = torch.arange(24).view(2, 3, 4)[..., 1]
    cos, sin = randn(2, 3, 8), randn(2, 3, 8)
    caches = torch.zeros(2, 6, 4, 2, 16)
    expected, wanted = q.clone(), caches.clone()
    in_two_calls(expected, k, v, cos, sin, *wanted, slots, "neox")
    rotary_kv_cache_write(q, k, v, cos, sin, *caches, slots)
    assert torch.equal(q, expected)
    assert torch.equal(caches, wanted)
    assert wanted.any()


def test_a_slot_behind_the_cache_is_refused_before_anything_is_written(randn):
    packed, cos, sin, caches, slots = make(randn, 5, 16, 8, F32)
    slots[4] = caches.shape[1] * caches.shape[2]
    before, start = packed.clone(), caches.clone()
    with pytest.raises(DomainError, match="behind the end"):
        rotary_kv_cache_write(*views(packed, 16), cos, sin, *caches, slots)
    assert torch.equal(packed, before)
    assert torch.equal(caches, start)


def test_no_tokens(randn):
    caches = torch.ones(2, 1, 2, KV, 8)
    packed = torch.ones(0, (HEADS + 2 * KV) * 8)
    angles = torch.ones(0, 4)
    none = torch.zeros(0, dtype=torch.int64)
    rotary_kv_cache_write(*views(packed, 8), angles, angles, *caches, none)
    assert torch.equal(caches, torch.ones_like(caches))


def test_refusals(randn):
    packed, cos, sin, caches, slots = make(randn, 5, 16, 8, F32)
    q, k, v = views(packed, 16)
    kc, vc = caches
    refused = [
        ((q.half(), k, v, cos, sin, kc, vc, slots), "dtype"),
        ((q, k.bfloat16(), v, cos, sin, kc.bfloat16(), vc, slots), "one dtype"),
        ((q, k, v.bfloat16(), cos, sin, kc, vc.bfloat16(), slots), "v must have the dtype"),
        ((q, k, v, cos, sin, kc.bfloat16(), vc, slots), "dtype of what is written"),
        ((q, k, v, cos.double(), sin, kc, vc, slots), "float32"),
        ((q, k, v, cos, sin, kc, vc, slots.int()), "int64"),
        ((q, k, v, cos, sin, kc, vc, slots[:4]), "same tokens"),
        ((q[:4], k, v, cos[:4], sin[:4], kc, vc, slots), "tokens and head_dim of q"),
        ((q, k, v, cos[:4], sin[:4], kc, vc, slots), "tokens of q"),
        ((q, k, v[:, :1], cos, sin, kc, vc[:, :, :1].contiguous(), slots), "heads of k"),
        ((q, k, v, cos, sin, kc.transpose(0, 1), vc.transpose(0, 1), slots), "contiguous"),
        ((q, k, v, cos, sin, kc, vc[:1], slots), "same blocks"),
        ((q, k, v, randn(5, 9), randn(5, 9), kc, vc, slots), "exceed"),
    ]
    before = packed.clone(), caches.clone()
    for arguments, words in refused:
        with pytest.raises(DomainError, match=words):
            rotary_kv_cache_write(*arguments)
    for choice, words in (({"pairing": "gptj"}, "pairing is"), ({"layout": "HND"}, "'HND'")):
        with pytest.raises(DomainError, match=words):
            rotary_kv_cache_write(q, k, v, cos, sin, kc, vc, slots, **choice)
    assert torch.equal(packed, before[0])
    assert torch.equal(caches, before[1])


def test_what_is_written_overlaps_nothing(randn):
    base, cos, sin = randn(400), randn(2, 4), randn(2, 4)
    slots, other = torch.tensor([0, 1]), torch.zeros(1, 4, 1, 8)
    q, k, v = (base[at : at + n].view(2, -1, 8) for at, n in ((0, 32), (40, 16), (60, 16)))
    k_cache = base[100:132].view(1, 4, 1, 8)
    start = base.clone()
    refused = [
        ((q, base[20:36].view(2, 1, 8), v, k_cache, other), "q overlaps k or v"),
        ((q, k, base[:16].view(2, 1, 8), k_cache, other), "q overlaps k or v"),
        ((q, k, v, k_cache, base[120:152].view(1, 4, 1, 8)), "two tensors"),
        ((q, k, v, base[20:52].view(1, 4, 1, 8), other), "a cache overlaps"),
        ((q, k, v, other, base[44:76].view(1, 4, 1, 8)), "a cache overlaps"),
        ((q[:1].expand(2, 2, 8), k, v, k_cache, other), "expanded"),
    ]
    for (a, b, c, *caches), words in refused:
        with pytest.raises(DomainError, match=words):
            rotary_kv_cache_write(a, b, c, cos, sin, *caches, slots)
    assert torch.equal(base, start)
    assert not other.any()
    rotary_kv_cache_write(q, k, v, cos, sin, k_cache, other, slots)
    assert other.any()
