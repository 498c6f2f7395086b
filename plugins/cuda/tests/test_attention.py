from __future__ import annotations

from math import inf

import pytest
import torch

import required
from paged_batch import Batch

required.triton()

from trivet.errors import DomainError
from trivet.kernels.triton import Tuned
from trivet.kernels.triton.tuning.trials import forget
from trivet_cuda.target import TABLES, TARGETS
from trivet_triton.kernels import (
    attention,
    attention_decode,
    attention_host,
    attention_prefill,
)
from trivet_triton.kernels.attention import (
    attend_invariant,
    paged_attention,
    paged_attention_invariant,
    paged_attention_out,
)
from trivet_triton.kernels.attention_decode import parts_at_most

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ONE_EACH = [(70, 1), (0, 0), (17, 1), (33, 1)]
MIXED = [(11, 11), (0, 0), (20, 1), (70, 9), (5, 7), (0, 2), (33, 1)]


@pytest.fixture
def small_parts(monkeypatch):
    """Decode cuts keys into parts of 16 and more."""
    config = {"BLOCK_N": 16, "LEAST": 16, "RESIDENT": 2, "num_warps": 4, "num_stages": 2}
    tuned = Tuned("small", TABLES, space=lambda *_: (), default=lambda _: ((inf, config),))
    monkeypatch.setattr(attention_decode, "TUNED", tuned)
    forget("trivet_triton.kernels")
    yield
    forget("trivet_triton.kernels")


def call_of(batch, longest=None, **scalars):
    given = {"scale": batch.scale, "window": 0, "soft_cap": 0.0, "layout": "NHD"} | scalars
    longest = longest or batch.most[1]
    return attention_host.opened(*batch.tensors, longest, **given, out=None)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "kv_heads", "group", "page", "parts", "scalars"),
    [
        (BF16, 128, 2, 4, 16, 1, {}),
        (BF16, 64, 1, 16, 8, 2, {"window": 20}),
        (F16, 80, 2, 1, 16, 3, {"soft_cap": 3.0}),
        (F32, 96, 1, 3, 32, 4, {"window": 37, "soft_cap": 30.0}),
        (F32, 112, 1, 20, 5, 2, {}),
        (F16, 192, 1, 7, 64, 4, {"window": 1}),
        (BF16, 256, 1, 2, 1, 3, {"soft_cap": 30.0}),
        (F32, 32, 3, 1, 256, 2, {"soft_cap": 2.0}),
    ],
)
def test_decode(small_parts, monkeypatch, dtype, head_dim, kv_heads, group, page, parts, scalars):
    monkeypatch.setattr(attention_decode, "parts_at_most", lambda *_: parts)
    batch = Batch(ONE_EACH, kv_heads, group, head_dim, dtype, page)
    batch.judge(batch.run(paged_attention, **scalars), **scalars)


def test_decode_with_bounds_far_above(small_parts):
    batch = Batch(ONE_EACH, 1, 4, 64, F32)
    batch.judge(batch.run(paged_attention, most=(1, 2**40)))
    batch.table = torch.nn.functional.pad(batch.table, (0, 10**4), value=-1)
    batch.judge(batch.run(paged_attention, most=(1, 10**5)))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_few_queries_a_sequence(small_parts, monkeypatch, dtype):
    launched = []
    monkeypatch.setattr(attention, "prefill", lambda *_, **__: launched.append("prefill"))
    batch = Batch([(70, 3), (1, 2), (0, 0), (40, 4), (9, 1)], 2, 2, 64, dtype)
    for scalars in ({}, {"window": 9, "soft_cap": 5.0}):
        batch.judge(batch.run(paged_attention, **scalars), **scalars)
    assert not launched


@pytest.mark.parametrize("function", [paged_attention, paged_attention_invariant])
@pytest.mark.parametrize(
    ("dtype", "head_dim", "kv_heads", "group", "page", "scalars"),
    [
        (BF16, 128, 1, 4, 16, {}),
        (F16, 64, 2, 7, 8, {"window": 10}),
        (F32, 80, 1, 1, 32, {"soft_cap": 3.0}),
        (F32, 32, 1, 33, 7, {"window": 3, "soft_cap": 30.0}),
        (BF16, 256, 1, 3, 256, {}),
    ],
)
def test_prefill_and_mixed(function, dtype, head_dim, kv_heads, group, page, scalars):
    batch = Batch(MIXED, kv_heads, group, head_dim, dtype, page)
    batch.judge(batch.run(paged_attention, **scalars), **scalars)


def test_one_sequence_of_unknown_length():
    batch = Batch([(30, 1)], 1, 4, 64, F32)
    batch.judge(batch.run(paged_attention, most=(4000, 4000)))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_a_short_chunk_behind_a_long_prefix_is_cut(monkeypatch, dtype):
    monkeypatch.setattr(attention, "_SHORTEST_SPLIT", 64)
    monkeypatch.setattr(attention, "processors", lambda _: 8)
    batch = Batch([(150, 20), (40, 1), (70, 11)], 1, 4, 32, dtype)
    config = attention_prefill.buckets(call_of(batch).shape)[0][1]
    assert attention._cut(call_of(batch), config)[0] == attention_prefill.IN_GRID
    batch.judge(batch.run(paged_attention))


@pytest.mark.parametrize(("dtype", "scalars"), [(F32, {}), (BF16, {"window": 70, "soft_cap": 5.0})])
def test_batch_invariance(monkeypatch, dtype, scalars):
    """Whole, in chunks, alone, with other bounds, with parts in the grid or in a program."""
    monkeypatch.setattr(attention, "FIXED_SPLIT", 64)
    batch = Batch([(140, 20), (33, 1), (70, 2)], 1, 2, 32, dtype)
    whole = batch.run(paged_attention_invariant, **scalars)
    batch.judge(whole, **scalars)
    for s, first, last in ((0, 0, 7), (0, 7, 20), (0, 19, 20), (1, 0, 1), (2, 1, 2)):
        begin = int(batch.start[s])
        alone = batch.alone(paged_attention_invariant, s, first, last, **scalars)
        assert torch.equal(alone, whole[begin + first : begin + last]), (s, first, last)
    monkeypatch.setattr(attention, "processors", lambda _: 1000)
    modes = []
    for limit in (0, 1 << 28):
        monkeypatch.setattr(attention, "_SCRATCH", limit)
        monkeypatch.setattr(
            attention,
            "prefill",
            lambda *a, **k: modes.append(k["mode"]) or attention_prefill.prefill(*a, **k),
        )
        assert torch.equal(batch.run(paged_attention_invariant, most=(99, 999), **scalars), whole)
    assert modes == [attention_prefill.IN_TURN, attention_prefill.IN_GRID]


def test_parts_without_a_visible_key():
    """A window that ends before a part starts, and rows before the first key."""
    batch = Batch([(70, 70), (3, 9)], 1, 1, 32, F32)
    call = call_of(batch, window=10)
    attend_invariant(call, 16)
    batch.judge(call.out, window=10)


@pytest.mark.parametrize("function", [paged_attention, paged_attention_invariant])
@pytest.mark.parametrize("scale", [-0.2, 0.0])
def test_scales_that_turn_the_order(function, scale):
    batch = Batch([(20, 1), (3, 1)], 1, 2, 32, F32)
    batch.scale = scale
    batch.judge(batch.run(function))


def test_a_window_that_hides_nothing():
    batch = Batch([(20, 5), (3, 1)], 1, 2, 32, F32)
    for window in (2**31 - 1, 2**63 - 1):
        batch.judge(batch.run(paged_attention, window=window))


def test_keys_without_any_weight_give_nan():
    batch = Batch([(20, 1), (9, 1)], 1, 2, 32, F32)
    batch.q = batch.q.abs()
    batch.k[:] = -torch.inf
    for function in (paged_attention, paged_attention_invariant):
        found = batch.run(function)
        assert found[2:4].isnan().all()
        assert not found[:2].any()
        assert not found[4:].any()


def test_out_and_odd_layouts():
    batch = Batch([(20, 11), (3, 1)], 1, 2, 32, F32)
    want = batch.run(paged_attention)
    out = torch.full_like(want, torch.nan)
    paged_attention_out(*batch.tensors, *batch.most, batch.scale, [], out=out)
    assert torch.equal(out, want)
    batch.table = batch.table.repeat_interleave(2, 1)[:, ::2]
    batch.start, batch.lens = (t.repeat_interleave(3)[::3] for t in (batch.start, batch.lens))
    batch.q = torch.nn.functional.pad(batch.q.flatten(1), (1, 0))[:, 1:].view_as(batch.q)
    assert torch.equal(batch.run(paged_attention), want)
    batch.q = batch.q[None]
    assert torch.equal(batch.run(paged_attention), want[None])


def test_nothing_to_do():
    batch = Batch([(20, 1)], 1, 2, 32, F32)
    none = torch.zeros(1).int()
    for function in (paged_attention, paged_attention_invariant):
        args = (1, 20, 1.0, [])
        assert not function(
            batch.q[:0], *batch.tensors[1:4], none.repeat(2), batch.lens, *args
        ).numel()
        empty = function(*batch.tensors[:3], batch.table[:0], none, batch.lens[:0], *args)
        assert empty.shape == batch.q.shape
        assert not empty.any()


def test_parts_fill_the_device():
    slots = 264
    assert parts_at_most(2048, 1024, slots, 128) == 1  # many programs already
    assert parts_at_most(8, 1024, slots, 128) == 8  # no part below the least
    for programs in (8, 16, 64, 160, 200):
        parts = parts_at_most(programs, 1 << 17, slots, 128)
        waves = parts * programs / slots
        assert waves / -(-parts * programs // slots) > 0.8, programs
    assert parts_at_most(512, 1 << 17, slots, 128) <= 16 * slots // 512  # a bound far too high
    assert parts_at_most(10**5, 1 << 17, slots, 128) == 1


def test_refusals():
    batch = Batch([(20, 1)], 1, 2, 32, F32)
    q, k, v, *tables = batch.tensors

    def refused(words, q=q, k=k, v=v, tables=tables, queries=1, **scalars):
        for function in (paged_attention, paged_attention_invariant):
            with pytest.raises(DomainError, match=words):
                function(q, k, v, *tables, queries, 20, 1.0, [], **scalars)

    refused("layout HND", layout="HND")
    refused("float16", q=q.half())
    refused("float64", q=q.double(), k=k.double(), v=v.double())
    refused("shapes", q=q[..., :16])
    refused("features", q=q[..., :17], k=k[..., :17], v=v[..., :17])
    refused("not contiguous", v=v.repeat(1, 2, 1, 1)[:, ::2])
    refused("2 heads on 3", k=k.repeat(1, 1, 3, 1), v=v.repeat(1, 1, 3, 1))
    refused("not dense", q=q.repeat_interleave(2, -1)[..., ::2])
    refused("starts of", tables=[tables[0], tables[1][:1], tables[2]])
    for i in range(3):
        given = list(tables)
        for odd in (given[i].long(), given[i][None]):
            given[i] = odd
            refused("int32" if odd.dtype == torch.int64 else "dim", tables=given)
    refused("not all on", tables=[t.to("meta") for t in tables])


@pytest.mark.parametrize(("arch", "warps"), [("sm80", 8), ("sm89", 8), ("sm90", 4)])
def test_a_tile_of_64_rows_has_the_warps_that_hold_it(arch, warps):
    shape = attention_host.Shape(-1, BF16, 8, 8, 128, 16)
    [(_, found)] = attention_decode.default(shape.key(arch))
    for queries, expected in ((1, 4), (4, 4), (8, warps)):
        config = attention_decode.fitted(found, shape, queries, arch)
        assert (config["num_warps"], "maxnreg" in config) == (expected, expected == 8)
        variant = attention_decode.attend_variant(shape, queries, config, alone=True)
        assert dict(variant.options)["num_warps"] == expected


@pytest.mark.parametrize("arch", TARGETS)
def test_variants_have_names_and_fit(arch):
    found = [
        pair for module in (attention, attention_decode, attention_prefill)
        for pair in module.variants(arch)
    ]  # fmt: skip
    assert len({name for name, _ in found}) == len(found)
    for name, variant in found:
        assert dict(variant.options)["num_warps"] in (1, 4, 8), name


def test_spaces_hold_the_defaults():
    for module in (attention_decode, attention_prefill):
        for dtype, head_dim in (("bfloat16", 128), ("float16", 64), ("bfloat16", 256)):
            for shared in (99, 163, 227):
                key = {"dtype": dtype, "head_dim": head_dim, "group": 4, "page": 16}
                key |= {"shared": shared}
                configs = list(module.space(key, 64))
                assert len(configs) > 5
                for _, config in module.default(key):
                    assert config in configs, (module.__name__, key, config)
