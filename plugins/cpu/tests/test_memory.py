"""Expanded and overlapping tensors: a wrong answer here is a write to foreign memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trivet.errors import DomainError, OutOfMemory
from trivet_cpu.compiled import activation, attention, kv_cache, norm, rotary

IN_A_CHILD = """
import torch
from trivet.errors import DomainError
from trivet_cpu.compiled import activation, kv_cache, norm, rotary

B, T = 40, 3000

def same(a, b):
    assert all(map(torch.equal, a, b))

def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except DomainError as error:
        assert "expanded" in error.what or "collapse" in error.what, error.what
    else:
        raise AssertionError(call)

def expanded(*last):
    return torch.randn(B, 1, *last).expand(B, T, *last)

{body}
"""
CRASHED_ONCE = {
    "rotary angles": """
q, cos, sin = torch.randn(B, T, 1, 8), expanded(4), expanded(4)
same(rotary.rotary_embedding(q, None, cos, sin),
     rotary.rotary_embedding(q, None, cos.contiguous(), sin.contiguous()))
""",
    "slots": """
k = torch.randn(B, T, 1, 4)
caches, others = torch.zeros(2, 2, B, 1, 1, 4)
k[:] = k[:, :1]
slots = torch.arange(B).view(B, 1).expand(B, T)
kv_cache.kv_cache_write(k, k, *caches, slots)
kv_cache.kv_cache_write(k, k, *others, slots.contiguous())
same(caches, others)
assert torch.equal(caches[0].view(B, 4), k[:, 0, 0])
""",
    "out of silu_and_mul": """
refused(activation.silu_and_mul_out, torch.randn(B, T, 16), out=expanded(8))
""",
    "x in place": """
refused(norm.rms_norm_, expanded(8), torch.ones(8))
""",
    "x read": """
refused(norm.rms_norm, expanded(8), torch.ones(8))
refused(norm.fused_add_rms_norm, torch.randn(B, T, 8), expanded(8), torch.ones(8))
""",
    "keys": """
cache = torch.zeros(2, B, T, 1, 8)
refused(kv_cache.kv_cache_write, expanded(1, 8), torch.randn(B, T, 1, 8), *cache,
        torch.arange(B * T).view(B, T))
""",
}


@pytest.mark.parametrize("name", CRASHED_ONCE)
def test_an_expanded_dim_between_others_is_no_run_of_rows(name):
    code = IN_A_CHILD.replace("{body}", CRASHED_ONCE[name])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_fully_expanded_inputs_are_read(randn):
    x, weight = randn(1, 1, 8), randn(8)
    y = norm.rms_norm(x.expand(3, 5, 8), weight)
    assert torch.equal(y, norm.rms_norm(x, weight).expand(3, 5, 8))


def test_what_is_written_must_not_be_expanded(randn):
    x, weight, row = randn(3, 8), randn(8), randn(1, 8)
    windows = randn(12).unfold(0, 8, 2)  # dense rows, each over a part of the one before
    for out in (row.expand(3, 8), windows):
        for call in (
            lambda out=out: norm.rms_norm_(out, weight),
            lambda out=out: norm.rms_norm_out(x, weight, out=out),
            lambda out=out: norm.fused_add_rms_norm_(x.clone(), out, weight),
            lambda out=out: norm.fused_add_rms_norm_out(x, x, weight, out=[out, x.clone()]),
            lambda out=out: activation.silu_and_mul_out(randn(3, 16), out=out),
        ):
            with pytest.raises(DomainError, match="expanded"):
                call()


def test_heads_that_are_written_must_not_be_expanded(randn):
    cos, sin = randn(3, 4), randn(3, 4)
    good = randn(3, 2, 8)
    for bad in (randn(3, 1, 8).expand(3, 2, 8), randn(1, 2, 8).expand(3, 2, 8)):
        for q, k in ((bad, None), (bad, good), (good, bad)):
            with pytest.raises(DomainError, match="expanded"):
                rotary.rotary_embedding_(q, k, cos, sin)
        rotary.rotary_embedding(bad, bad, cos, sin)
    one = randn(1, 1, 8).expand(1, 2, 8)
    with pytest.raises(DomainError, match="expanded"):
        rotary.rotary_embedding_(one, None, cos[:1], sin[:1])


def test_heads_before_tokens_are_written(randn):
    cos, sin = randn(3, 4), randn(3, 4)
    q = randn(2, 3, 8).transpose(0, 1)
    expected = rotary.rotary_embedding(q, None, cos, sin)[0]
    rotary.rotary_embedding_(q, None, cos, sin)
    assert torch.equal(q, expected)


def test_columns_of_one_matrix_are_apart(randn):
    wide, weight = randn(5, 48), randn(16)
    x, residual, free = wide.split(16, -1)
    expected = norm.rms_norm(x, weight)
    norm.rms_norm_out(x, weight, out=free)
    assert torch.equal(free, expected)
    expected = norm.fused_add_rms_norm(x, residual, weight)
    norm.fused_add_rms_norm_out(x, residual, weight, out=[free, residual])
    assert torch.equal(free, expected[0])
    assert torch.equal(residual, expected[1])
    expected = activation.silu_and_mul(wide[:, :32])
    activation.silu_and_mul_out(wide[:, :32], out=wide[:, 16:32])
    assert torch.equal(wide[:, 16:32], expected)


def test_an_output_over_another_part_of_an_input_is_refused(randn):
    flat, weight = randn(200), randn(16)
    x, shifted = flat[:80].view(5, 16), flat[8:88].view(5, 16)
    lower = flat[16:96].view(5, 16)
    apart = randn(5, 16)
    calls = [
        lambda: norm.rms_norm_out(x, weight, out=shifted),
        lambda: norm.rms_norm_out(x, weight, out=lower),
        lambda: norm.rms_norm_out(apart, flat[:16], out=x),
        lambda: norm.fused_add_rms_norm_(x, x, weight),
        lambda: norm.fused_add_rms_norm_out(x, apart, weight, out=[lower, randn(5, 16)]),
        lambda: norm.fused_add_rms_norm_out(apart, x, weight, out=[randn(5, 16), lower]),
        lambda: norm.fused_add_rms_norm_out(apart, apart, weight, out=[x, lower]),
        lambda: activation.silu_and_mul_out(flat[:160].view(5, 32), out=shifted),
        lambda: rotary.rotary_embedding_(
            x.view(5, 2, 8), lower.view(5, 2, 8), randn(5, 4), randn(5, 4)
        ),
        lambda: rotary.rotary_embedding_(
            x.view(5, 2, 8), x.view(5, 2, 8), randn(5, 4), randn(5, 4)
        ),
    ]
    before = flat.clone()
    for call in calls:
        with pytest.raises(DomainError, match="overlap"):
            call()
    assert torch.equal(flat, before)


def test_caches_that_overlap_are_refused(randn):
    k, slots, flat = randn(3, 1, 8), torch.arange(3), torch.zeros(96)
    cache, shifted = flat[:64].view(2, 4, 1, 8), flat[32:].view(2, 4, 1, 8)
    for other in (cache, shifted):
        with pytest.raises(DomainError, match="overlap"):
            kv_cache.kv_cache_write(k, k, cache, other, slots)
    assert not flat.any()


def test_attention_does_not_write_over_what_it_reads(randn):
    q, cache = randn(2, 4, 8), randn(2, 2, 4, 1, 8)
    table, start = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    lengths = torch.tensor([3], dtype=torch.int32)
    for out in (q, cache.view(-1)[:64].view(2, 4, 8), cache.view(-1)[64:].view(2, 4, 8)):
        with pytest.raises(DomainError, match="overlap"):
            attention.paged_attention_out(q, *cache, table, start, lengths, 2, 3, 1.0, [], out=out)


def test_strided_tables_are_read_right(randn):
    q, cache = randn(2, 4, 8), randn(2, 3, 4, 1, 8)
    start = torch.tensor([0, 1, 2], dtype=torch.int32)
    lengths = torch.tensor([7], dtype=torch.int32).expand(2)
    table = torch.tensor([[2], [1]], dtype=torch.int32).T.expand(2, 2)
    y = attention.paged_attention(q, *cache, table, start, lengths, 1, 7, 1.0, [])
    again = attention.paged_attention(
        q, *cache, table.clone(), start, lengths.clone(), 1, 7, 1.0, []
    )
    assert torch.equal(y, again)


def test_a_result_that_does_not_fit_says_its_size():
    tall = torch.ones(1, 4096).expand(1 << 40, 4096)
    with pytest.raises(OutOfMemory, match=f"rms_norm: no memory .* {1 << 54} bytes") as raised:
        norm.rms_norm(tall, torch.ones(4096))
    assert raised.value.requested_bytes == 1 << 54


def test_none_is_refused_by_name():
    for arguments in ((None, torch.ones(4)), (torch.ones(2, 4), None)):
        with pytest.raises(DomainError, match="None"):
            norm.rms_norm(*arguments)
