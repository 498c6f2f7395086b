from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.catalogue import operators
from trivet.errors import DomainError
from trivet.kernels.triton.tuning.trials import forget
from trivet_triton.kernels import kv_cache

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
REFERENCE = operators()["kv_cache_write"].reference


def randn(*sizes, dtype=F32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def made(tokens, heads, dim, dtype, cached=None, block_size=4):
    packed = randn(tokens, 4 * heads * dim, dtype=dtype)
    k, v = (
        packed[:, n * heads * dim :][:, : heads * dim].unflatten(1, (heads, dim)) for n in (1, 3)
    )
    blocks = tokens // block_size + 2
    caches = randn(2, blocks, block_size, heads, dim, dtype=cached or dtype, seed=5)
    slots = randn(blocks * block_size, seed=7).argsort()[:tokens]
    slots[1::4] = -1
    return k, v, *caches, slots


@pytest.mark.parametrize(
    ("heads", "dim", "dtype", "cached"),
    [
        (2, 64, F32, F32),
        (3, 64, BF16, BF16),
        (1, 17, F16, F16),
        (2, 16, F32, BF16),
        (2, 16, BF16, F16),
        (2, 16, F16, F32),
        (33, 128, BF16, BF16),
    ],
)
def test_writes_what_the_reference_writes(heads, dim, dtype, cached):
    k, v, k_cache, v_cache, slots = made(7, heads, dim, dtype, cached)
    expected = k_cache.clone(), v_cache.clone()
    REFERENCE(k, v, *expected, slots)
    assert not torch.equal(k_cache, expected[0])
    kv_cache.kv_cache_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


def test_every_number_of_tokens_a_program_gives_the_same(monkeypatch):
    k, v, k_cache, v_cache, slots = made(9, 2, 8, F32)
    expected = k_cache.clone(), v_cache.clone()
    REFERENCE(k, v, *expected, slots)
    counts = {c["ROWS"]: c for c in kv_cache.space({"width": 16}, 9)}
    assert len(counts) > 2
    for config in counts.values():
        monkeypatch.setattr(kv_cache._TUNED, "buckets", lambda *_, c=config: ((9e9, c),))
        forget("trivet_triton.kernels")
        mine = k_cache.clone(), v_cache.clone()
        kv_cache.kv_cache_write(k, v, *mine, slots)
        assert all(map(torch.equal, mine, expected))
    forget("trivet_triton.kernels")


def test_slots_outside_of_the_cache_are_not_written():
    k, v, k_cache, v_cache, slots = made(4, 2, 8, F32)
    untouched = k_cache.clone(), v_cache.clone()
    slots[:] = torch.tensor([-1, k_cache.shape[0] * 4, 1 << 40, -(1 << 40)])
    kv_cache.kv_cache_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, untouched[0])
    assert torch.equal(v_cache, untouched[1])


def test_no_tokens_and_another_layout():
    k, v, k_cache, v_cache, slots = made(4, 2, 8, F32)
    untouched = k_cache.clone()
    kv_cache.kv_cache_write(k[:0], v[:0], k_cache, v_cache, slots[:0])
    assert torch.equal(k_cache, untouched)
    with pytest.raises(DomainError, match="layout") as raised:
        kv_cache.kv_cache_write(k, v, k_cache, v_cache, slots, "HND")
    assert "NHD" in raised.value.fix
