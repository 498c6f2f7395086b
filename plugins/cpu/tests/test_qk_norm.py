from __future__ import annotations

import itertools

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.compiled import norm
from trivet_cpu.compiled.qk_norm import qk_rms_norm, qk_rms_norm_

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TYPES = list(itertools.product((F32, BF16, F16), repeat=2))
SCALARS = list(itertools.product((0.0, 1.0), (False, True)))


def split(packed, heads, kv_heads, dim):
    """Views of q, k and v in the rows of one packed projection."""
    parts = packed.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    return [p.unflatten(-1, (-1, dim)) for p in parts]


@pytest.mark.parametrize("dim", [1, 17, 64, 128])
@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_heads_are_the_rows_of_rms_norm(level, randn, dim, xd, wd):
    packed = randn(2, 5, (6 + 2 * 2) * dim, dtype=xd)
    q, k, v = split(packed, 6, 2, dim)
    q_weight, k_weight = randn(dim, dtype=wd), randn(dim, dtype=wd)
    for offset, in_float32 in SCALARS:
        scalars = (1e-5, offset, in_float32)
        found = qk_rms_norm(q, k, q_weight, k_weight, *scalars)
        pairs = ((q, q_weight), (k, k_weight))
        for mine, (t, weight) in zip(found, pairs, strict=True):
            assert mine.is_contiguous()
            assert torch.equal(mine, norm.rms_norm(t.contiguous(), weight, *scalars))
        (alone,) = qk_rms_norm(q, None, q_weight, None, *scalars)
        assert torch.equal(alone, found[0])

        written, values = packed.clone(), v.clone()
        mine = split(written, 6, 2, dim)
        qk_rms_norm_(mine[0], mine[1], q_weight, k_weight, *scalars)
        assert torch.equal(mine[0], found[0])
        assert torch.equal(mine[1], found[1])
        assert torch.equal(mine[2], values)
        lone = q.clone()
        qk_rms_norm_(lone, None, q_weight, None, *scalars)
        assert torch.equal(lone, found[0])


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_token_depends_on_no_other_and_on_no_thread(level, randn, threads, dtype):
    q, k = randn(300, 9, 64, dtype=dtype), randn(300, 3, 64, dtype=dtype)
    weights = randn(64, dtype=dtype), randn(64, dtype=dtype)
    with threads(1):
        whole = qk_rms_norm(q, k, *weights)
        for i in (0, 150, 299):
            alone = qk_rms_norm(q[i : i + 1], k[i : i + 1], *weights)
            assert all(torch.equal(a, w[i : i + 1]) for a, w in zip(alone, whole, strict=True))
    with threads(3):
        assert all(map(torch.equal, qk_rms_norm(q, k, *weights), whole))


def test_heads_apart_and_strided_weights(level, randn):
    wide, weight = randn(4, 6, 8), randn(16)[::2]
    q = wide[:, ::2]
    (found,) = qk_rms_norm(q, None, weight, None)
    assert torch.equal(found, norm.rms_norm(q.contiguous(), weight.clone()))
    kept = wide[:, 1::2].clone()
    qk_rms_norm_(q, wide[:, 1::2], weight, torch.zeros(8))
    assert torch.equal(q, found)
    assert not torch.equal(wide[:, 1::2], kept)
    assert not wide[:, 1::2].any()


def test_no_tokens():
    weight = torch.ones(8)
    found = qk_rms_norm(torch.ones(0, 2, 8), torch.ones(0, 1, 8), weight, weight)
    assert [t.shape for t in found] == [(0, 2, 8), (0, 1, 8)]
    qk_rms_norm_(torch.ones(0, 2, 8), None, weight, None)


def test_refusals(randn):
    q, k, w = randn(3, 2, 8), randn(3, 1, 8), torch.ones(8)
    refused = [
        ((q.double(), k.double(), w, w), "dtype"),
        ((q, k.bfloat16(), w, w), "one dtype"),
        ((q, k[:2], w, w), "tokens and head_dim"),
        ((q, k, w[:7], w), "as long as"),
        ((q, k, w, torch.ones(1, 8)), "one dim"),
        ((q, k, w.double(), w), "weight must be"),
        ((q.transpose(1, 2), None, torch.ones(2), None), "dense"),
        ((randn(4, 3, 2, 8).transpose(0, 1), None, w, None), "collapse"),
        ((randn(8), None, w, None), "at least"),
        ((q, None, w, w), "together"),
        ((q, k, w, None), "together"),
    ]
    for arguments, words in refused:
        for call in (qk_rms_norm, qk_rms_norm_):
            with pytest.raises(DomainError, match=words):
                call(*arguments)


def test_what_is_written_overlaps_nothing(randn):
    base, w = randn(64), torch.ones(8)
    q, k = base[:48].view(3, 2, 8), base[40:64].view(3, 1, 8)
    refused = [
        ((q, k, w, w), "q and k overlap"),
        ((q, q, w, w), "q and k overlap"),
        ((q, None, base[:8], None), "overlaps a weight"),
        ((q, base[48:56].view(1, 1, 8).expand(3, 1, 8), w, w), "expanded"),
    ]
    before = base.clone()
    for arguments, words in refused:
        with pytest.raises(DomainError, match=words):
            qk_rms_norm_(*arguments)
    assert torch.equal(base, before)
