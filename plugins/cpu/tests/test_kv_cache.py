from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.compiled.kv_cache import kv_cache_write


def by_hand(k, v, k_cache, v_cache, slots):
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // k_cache.shape[1], slot % k_cache.shape[1]] = k[token]
            v_cache[slot // k_cache.shape[1], slot % k_cache.shape[1]] = v[token]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("heads", "dim", "size"), [(3, 64, 16), (1, 80, 1), (2, 17, 8)])
def test_slots_are_written_and_nothing_else(randn, threads, dtype, heads, dim, size):
    tokens, blocks = 40, 80 // size
    packed = randn(tokens, 5, heads * dim, dtype=dtype)
    k, v = packed[:, 1].view(tokens, heads, dim), packed[:, 3].view(tokens, heads, dim)
    slots = torch.randperm(blocks * size)[:tokens]
    slots[::5] = -1
    slots[1] = blocks * size - 1
    slots[slots == blocks * size - 1] = torch.tensor(-1)
    slots[1] = blocks * size - 1
    start = randn(2, blocks, size, heads, dim, dtype=dtype)
    expected = start.clone()
    by_hand(k, v, expected[0], expected[1], slots)
    for count in (1, 3):
        with threads(count):
            k_cache, v_cache = start[0].clone(), start[1].clone()
            kv_cache_write(k, v, k_cache, v_cache, slots)
            assert torch.equal(k_cache, expected[0])
            assert torch.equal(v_cache, expected[1])


def test_heads_apart(randn):
    k, v = randn(4, 6, 8)[:, ::2], randn(4, 3, 8)
    caches = torch.zeros(2, 2, 4, 3, 8)
    slots = torch.tensor([7, -3, 0, 2])
    expected = torch.zeros_like(caches)
    by_hand(k, v, *expected, slots)
    kv_cache_write(k, v, *caches, slots)
    assert torch.equal(caches, expected)


def test_two_leading_dims_and_strided_slots(randn):
    k, v = randn(2, 3, 1, 8), randn(2, 3, 1, 8)
    slots = torch.arange(24).view(2, 3, 4)[..., 1]
    k_cache, v_cache = torch.zeros(6, 4, 1, 8), torch.zeros(6, 4, 1, 8)
    kv_cache_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache.view(24, 1, 8)[1::4], k.view(6, 1, 8))
    assert torch.equal(v_cache.view(24, 1, 8)[1::4], v.view(6, 1, 8))


def test_a_slot_behind_the_cache_is_refused_before_anything_is_written(randn):
    k, cache = randn(3, 1, 8), torch.zeros(2, 4, 1, 8)
    with pytest.raises(DomainError, match="behind the end"):
        kv_cache_write(k, k, cache, cache.clone(), torch.tensor([0, 8, 1]))
    assert not cache.any()


def test_no_tokens():
    cache = torch.ones(1, 2, 1, 4)
    empty = torch.ones(0, 1, 4)
    kv_cache_write(empty, empty, cache, cache.clone(), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(cache, torch.ones(1, 2, 1, 4))


def test_refusals(randn):
    k, cache, slots = randn(3, 2, 8), torch.zeros(2, 4, 2, 8), torch.arange(3)
    refused = [
        ((k, k, cache.bfloat16(), cache, slots), "dtype"),
        ((k, k, cache, cache, slots.int()), "int64"),
        ((k, k, cache, cache, slots[:2]), "same tokens"),
        ((k, k[:, :1], cache, cache, slots), "must agree"),
        ((k, k, cache[0], cache[0], slots), "dims blocks"),
        ((k, k, torch.zeros(2, 4, 4, 8)[:, :, ::2], cache, slots), "contiguous"),
        ((k, k, cache, torch.zeros(3, 4, 2, 8), slots), "same blocks"),
        ((k.transpose(1, 2).contiguous().transpose(1, 2), k, cache, cache, slots), "dense"),
    ]
    for arguments, words in refused:
        with pytest.raises(DomainError, match=words):
            kv_cache_write(*arguments)


def test_an_unknown_layout_is_refused(randn):
    k, cache = randn(3, 2, 8), torch.zeros(2, 4, 2, 8)
    with pytest.raises(DomainError, match="'HND'") as raised:
        kv_cache_write(k, k, cache, cache.clone(), torch.arange(3), "HND")
    assert "'NHD'" in raised.value.fix
    assert not cache.any()
