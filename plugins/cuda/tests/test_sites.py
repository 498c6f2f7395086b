"""What a bind settles: functions made of facts do what the operators do, and compile nothing."""

from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.catalogue import operators
from trivet.contracts.implementation import claims_of
from trivet.kernels.triton import Variant
from trivet.kernels.triton.tuning.trials import forget
from trivet.selection.facts import normalise
from trivet_triton.kernels import (
    activation,
    attention,
    kv_cache,
    layer_norm,
    norm,
    norm_invariant,
    qk_norm,
    rotary,
    rotary_kv_cache,
)

BF16, F32 = torch.bfloat16, torch.float32
HEADS, KV, DIM, PAGE, HIDDEN = 4, 2, 16, 4, 32
NORM = {"dtype": BF16, "weight.dtype": F32, "hidden": HIDDEN}
TURN = {"dtype": BF16, "heads": HEADS, "kv_heads": KV, "head_dim": DIM, "rotary_half": 8}
CACHE = {"k_cache.dtype": BF16, "v_cache.dtype": BF16, "block_size": PAGE}
TABLES = ["block_table", "query_start", "seq_lens"]


def randn(*sizes, dtype=BF16, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows(n, *, gap=0, offset=0, width=HIDDEN):
    """Rows with gaps between them, the first one ``offset`` elements behind an allocation."""
    whole = randn(n * (width + gap) + offset, seed=n + gap + offset)[offset:]
    return whole.view(n, width + gap)[:, :width]


def norms(n, **layout):
    return rows(n, **layout), randn(HIDDEN, dtype=F32)


def fused(n, **layout):
    return rows(n, **layout), rows(n, **layout) + 1, randn(HIDDEN, dtype=F32)


def layer(n, **layout):
    return rows(n, **layout), randn(HIDDEN, dtype=F32), randn(HIDDEN, dtype=F32, seed=5)


def gates(n, **layout):
    return (rows(n, **layout),)


def heads(n, **layout):
    packed = rows(n, width=(HEADS + 2 * KV) * DIM, **layout).unflatten(-1, (-1, DIM))
    return packed.split((HEADS, KV, KV), dim=1)


def normed_heads(n, **layout):
    return *heads(n, **layout)[:2], randn(DIM, dtype=F32), randn(DIM, dtype=F32, seed=5)


def turned(n, **layout):
    angle = rows(n, width=8, **layout).float()
    return *heads(n, **layout)[:2], angle.cos(), angle.sin()


def caches():
    return [randn(3, PAGE, KV, DIM, seed=s) for s in (7, 8)]


def written(n, **layout):
    slots = torch.tensor([9, 2, -1, 11])[:n]
    q, k, cos, sin = turned(n, **layout)
    return q, k, heads(n, **layout)[2], cos, sin, *caches(), slots


def copied(n, **layout):
    return *heads(n, **layout)[1:], *caches(), torch.tensor([9, 2, -1, 11])[:n]


def attended(n, **layout):
    table = torch.arange(n, dtype=torch.int32)[:, None] % 3
    starts = torch.arange(n + 1, dtype=torch.int32)
    lengths = torch.tensor([4, 1, 3, 2], dtype=torch.int32)[:n]
    return heads(n, **layout)[0], *caches(), table, starts, lengths, 1, 4, DIM**-0.5, []


ATTEND = {
    "dtype": BF16, **CACHE, "heads": HEADS, "kv_heads": KV, "head_dim": DIM, "scale": DIM**-0.5,
}  # fmt: skip
CASES = {
    "rms_norm": (norm.rms_norm, norms, NORM, ["x"]),
    "rms_norm_": (norm.rms_norm_, norms, NORM, ["x"]),
    "invariant": (norm_invariant.rms_norm, norms, NORM, ["x"]),
    "fused_add_rms_norm": (norm.fused_add_rms_norm, fused, NORM, ["x", "residual"]),
    "fused_add_rms_norm_": (norm.fused_add_rms_norm_, fused, NORM, ["x", "residual"]),
    "layer_norm": (layer_norm.layer_norm, layer, NORM, ["x"]),
    "layer_norm_": (layer_norm.layer_norm_, layer, NORM, ["x"]),
    "silu_and_mul": (activation.silu_and_mul, gates, {"dtype": BF16, "inter": 16}, ["x"]),
    "gelu_and_mul": (activation.gelu_and_mul, gates, {"dtype": BF16, "inter": 16}, ["x"]),
    "silu": (activation.silu, gates, {"dtype": BF16}, ["x"]),
    "gelu": (activation.gelu, gates, {"dtype": BF16}, ["x"]),
    "qk_rms_norm": (qk_norm.qk_rms_norm, normed_heads, {**TURN, "q_weight.dtype": F32}, []),
    "qk_rms_norm_": (qk_norm.qk_rms_norm_, normed_heads, {**TURN, "q_weight.dtype": F32}, []),
    "rotary_embedding": (rotary.rotary_embedding, turned, TURN, ["cos", "sin"]),
    "rotary_embedding_": (rotary.rotary_embedding_, turned, TURN, ["cos", "sin"]),
    "rotary_kv_cache_write": (
        rotary_kv_cache.rotary_kv_cache_write, written, {**TURN, **CACHE}, ["cos", "sin"],
    ),
    "kv_cache_write": (
        kv_cache.kv_cache_write, copied, {**CACHE, "dtype": BF16, "kv_heads": KV, "head_dim": DIM},
        [],
    ),
    "paged_attention": (attention.paged_attention, attended, ATTEND, TABLES),
}  # fmt: skip


def bound(function, facts, **more):
    """What a site of these facts holds."""
    (claim, *_) = (c for c in claims_of(function) if c.resolve is not None)
    op = operators()[claim.target.partition("@")[0].removesuffix("_")]
    known = {k: v for k, v in facts.items() if "." in k or k == "dtype" or k in op.where}
    known |= {k: v for k, v in facts.items() if k in op.scalars}
    return claim.resolve(normalise(op, known | more, site=True).values)


def aligned(*names):
    return {f"{name}.offset_aligned": 16 for name in names}


def same(function, site, make, n, **layout):
    """Both leave equal bits, in results and in what they were given."""
    given, mine = make(n, **layout), make(n, **layout)
    wanted, found = function(*given), site(*mine)
    pairs = [(found, wanted), *zip(mine, given, strict=True)]
    for a, b in pairs:
        for one, other in zip(*(t if isinstance(t, (list, tuple)) else [t] for t in (a, b))):  # noqa: B905
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other)
            else:
                assert one == other


@pytest.mark.parametrize("name", CASES)
def test_a_site_does_what_the_operator_does(name):
    function, make, facts, dense = CASES[name]
    site = bound(function, facts)
    assert site is not None
    assert site is not function
    assert site is bound(function, dict(reversed(facts.items())))  # a compiler's guard still holds
    same(function, site, make, 3)
    same(function, site, make, 0)
    same(function, site, make, 2, gap=3)
    same(function, site, make, 2, offset=1)
    promising = bound(function, facts, contiguous=dense) if dense else site
    assert (promising is site) == (not dense)
    same(function, promising, make, 3)
    if name != "silu":  # nothing is promised of rows that are not contiguous
        same(function, promising, make, 2, offset=1)


@pytest.mark.parametrize("name", CASES)
def test_a_bind_makes_what_its_calls_launch(name, monkeypatch):
    function, make, facts, dense = CASES[name]
    forget("trivet_triton.kernels")
    made = []
    real = Variant.on
    monkeypatch.setattr(Variant, "on", lambda self, device: made.append(self) or real(self, device))
    half = {k: torch.float16 if v is BF16 else v for k, v in facts.items()}  # no other test's
    site = bound(function, half, contiguous=dense) if dense else bound(function, half)
    before = len(made)
    assert before
    halves = [t.half() if isinstance(t, torch.Tensor) and t.dtype is BF16 else t for t in make(3)]
    site(*halves)
    assert len(made) == before


def test_addresses_are_not_looked_at_where_facts_tell():
    facts = {**TURN, **CACHE, **aligned("q", "k", "v", "cos", "sin", "k_cache", "v_cache")}
    site = bound(rotary_kv_cache.rotary_kv_cache_write, facts, contiguous=["cos", "sin"])
    same(rotary_kv_cache.rotary_kv_cache_write, site, written, 3)
    same(rotary_kv_cache.rotary_kv_cache_write, site, written, 3, gap=8)
    some = {k: v for k, v in facts.items() if k != "v.offset_aligned"}
    other = bound(rotary_kv_cache.rotary_kv_cache_write, some, contiguous=["cos", "sin"])
    assert other is not site
    same(rotary_kv_cache.rotary_kv_cache_write, other, written, 2, offset=1)


def test_sites_whose_calls_lack_an_optional_tensor():
    x, weight, _ = layer(3)
    site = bound(layer_norm.layer_norm, NORM)
    assert torch.equal(site(x, weight), layer_norm.layer_norm(x, weight))
    q, _, q_weight, _ = normed_heads(2)
    site = bound(qk_norm.qk_rms_norm, {**TURN, "q_weight.dtype": F32})
    wanted = qk_norm.qk_rms_norm(q, None, q_weight, None)
    assert all(map(torch.equal, site(q, None, q_weight, None), wanted))
    q, _, cos, sin = turned(2)
    wanted = rotary.rotary_embedding(q, None, cos, sin)
    assert all(map(torch.equal, bound(rotary.rotary_embedding, TURN)(q, None, cos, sin), wanted))


def test_open_facts_and_scalars_that_no_kernel_takes_make_no_site():
    assert bound(norm.rms_norm, {"dtype": BF16, "weight.dtype": F32}) is None
    assert bound(norm.rms_norm, {**NORM, "hidden": range(1, 9)}) is None
    assert bound(norm.rms_norm, NORM, variance_size=HIDDEN + 1) is None


def test_longer_queries_take_the_long_way():
    q, *tensors = attended(3)[:6]
    tables = [tensors[2], torch.tensor([0, 3], dtype=torch.int32), tensors[4][:1]]
    tables[0] = tables[0][:1]
    site = bound(attention.paged_attention, ATTEND, contiguous=TABLES)
    given = (q, *tensors[:2], *tables, 3, 4, DIM**-0.5, [])
    assert torch.equal(site(*given), attention.paged_attention(*given))
