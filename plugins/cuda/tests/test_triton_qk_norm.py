from __future__ import annotations

import itertools
import re
from math import inf

import pytest
import torch
from triton.backends.compiler import GPUTarget

from trivet.catalogue import qk_norm as declared
from trivet.contracts.implementation import claims_of
from trivet.errors import DomainError
from trivet_triton.kernels import qk_norm
from trivet_triton.kernels.qk_norm import qk_rms_norm, qk_rms_norm_

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TYPES = list(itertools.product((F32, BF16, F16), repeat=2))
STEP = {F32: 1e-5, BF16: 2**-6, F16: 2**-9}
SCALARS = ((1e-6,), (1e-5, 1.0, True), (1e-6, 1.0))


def randn(*sizes, dtype=F32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def split(packed, heads, kv_heads, dim):
    """Views of q, k and v in the rows of one packed projection."""
    parts = packed.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    return [p.unflatten(-1, (-1, dim)) for p in parts]


def close(found, wanted):
    step = STEP[wanted.dtype]
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=step, atol=step / 100)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(9, 3, 64), (6, 2, 17), (4, 1, 128), (3, 1, 300)]
)
@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_views_of_one_projection(heads, kv_heads, dim, xd, wd):
    packed = randn(3, (heads + 2 * kv_heads) * dim, dtype=xd)
    q, k, v = split(packed, heads, kv_heads, dim)
    weights = randn(dim, dtype=wd, seed=5), randn(dim, dtype=wd, seed=6)
    scalars = SCALARS[(heads + TYPES.index((xd, wd))) % 3]
    found = qk_rms_norm(q, k, *weights, *scalars)
    for mine, wanted in zip(
        found, declared.qk_rms_norm.reference(q, k, *weights, *scalars), strict=True
    ):
        assert mine.is_contiguous()
        close(mine, wanted)
    (alone,) = qk_rms_norm(q, None, weights[0], None, *scalars)
    assert torch.equal(alone, found[0])
    values = v.clone()
    qk_rms_norm_(q, k, *weights, *scalars)
    assert torch.equal(q, found[0])
    assert torch.equal(k, found[1])
    assert torch.equal(v, values)


def test_more_dims_and_one_part_in_place():
    q, weight = randn(2, 2, 5, 32), randn(32)
    wanted = declared.qk_rms_norm.reference(q, None, weight, None)[0]
    qk_rms_norm_(q, None, weight, None)
    close(q, wanted)


@pytest.mark.parametrize("tokens", [1, 7])
def test_every_candidate_of_the_tuner(tokens):
    q, k, weight = randn(tokens, 9, 64), randn(tokens, 3, 64, seed=4), randn(64)
    wanted = declared.qk_rms_norm.reference(q, k, weight, weight)
    fixed = {"HEADS": 9, "KV_HEADS": 3, "DIM": 64, "EPS": 1e-6, "OFFSET": 0.0, "IN_FLOAT32": False}
    seen = []
    for one in qk_norm.space({"heads": 9, "head_dim": 64}, 65 if tokens > 1 else 1):
        what = (one["TOKENS"], one["SPAN"])
        if what in seen:
            continue
        seen.append(what)
        launch = qk_norm.variant(F32, F32, True, fixed | one).on(torch.device("cpu"))
        found = torch.zeros_like(q), torch.zeros_like(k)
        blocks = -(-9 // one["SPAN"]) + -(-3 // one["SPAN"])
        grid = -(-tokens // one["TOKENS"]) * blocks
        strides = (576, 192, 576, 192)
        launch(grid, 1, 1, q, k, weight, weight, *found, *strides, tokens)
        for mine, expected in zip(found, wanted, strict=True):
            close(mine, expected)
    assert len(seen) > 2


@pytest.mark.parametrize(("heads", "dim"), [(32, 128), (9, 64), (16, 256)])
def test_all_candidates_add_in_one_order(heads, dim):
    """What claims that tokens do not depend on each other: the lanes of a row are the same."""
    fixed = {"HEADS": heads, "KV_HEADS": 4, "DIM": dim, "EPS": 1e-6, "OFFSET": 0.0}
    layouts = set()
    key = {"heads": heads, "head_dim": dim}
    configs = [c for _, c in qk_norm.default(key)]
    configs += [list(qk_norm.space(key, 65))[i] for i in (0, -1)]
    for one in configs:
        made = qk_norm.variant(BF16, BF16, True, {**fixed, "IN_FLOAT32": False, **one})
        text = made.compile(GPUTarget("cuda", 90, 32)).asm["ttgir"]
        name = re.search(r'"tt.reduce".*?tensor<\d+x\d+xf32, (#\w+)>', text, re.DOTALL)[1]
        layout = re.search(rf"^{name} = (.*)$", text, re.MULTILINE)[1]
        along = [
            int(re.search(rf"{what} = \[\d+, (\d+)\]", layout)[1])
            for what in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")
        ]
        layouts.add(tuple(along))
    assert layouts == {(8, dim // 8, 1)}


def test_no_tokens_and_lone_parts():
    weight = torch.ones(8)
    found = qk_rms_norm(torch.ones(0, 2, 8), torch.ones(0, 1, 8), weight, weight)
    assert [t.shape for t in found] == [(0, 2, 8), (0, 1, 8)]
    for k, k_weight in ((None, weight), (torch.ones(3, 1, 8), None)):
        with pytest.raises(DomainError, match="together"):
            qk_rms_norm(torch.ones(3, 2, 8), k, weight, k_weight)


def test_claims():
    for function, target in ((qk_rms_norm, "qk_rms_norm@1"), (qk_rms_norm_, "qk_rms_norm_@1")):
        general, aligned = claims_of(function)
        assert general.target == aligned.target == target
        assert not general.batch_invariant
        assert aligned.batch_invariant
        assert [most for most, _ in qk_norm.default({"heads": 8, "head_dim": 64})][-1] == inf
