from __future__ import annotations

import pytest
import torch

from paged_batch import Batch, close
from trivet.catalogue.dense_attention import attention as dense
from trivet.errors import DomainError
from trivet_metal.operators.attention import (
    paged_attention,
    paged_attention_invariant,
    paged_attention_out,
)
from trivet_metal.operators.dense_attention import attention

pytestmark = pytest.mark.usefixtures("emulator")

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHORT = [(70, 1), (0, 0), (17, 2), (33, 1), (0, 1)]
MIXED = [(11, 11), (0, 0), (20, 1), (40, 9), (3, 5), (0, 2), (33, 1)]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "kv_heads", "group", "page", "scalars"),
    [
        (BF16, 128, 2, 4, 16, {}),
        (BF16, 64, 1, 8, 8, {"window": 20}),
        (F16, 80, 2, 1, 16, {"soft_cap": 3.0}),
        (F32, 96, 1, 3, 32, {"window": 37, "soft_cap": 30.0}),
        (F32, 112, 1, 2, 5, {}),
        (F16, 192, 1, 2, 64, {"window": 1}),
        (F32, 256, 1, 2, 1, {"soft_cap": 30.0}),
        (F32, 17, 3, 1, 256, {"soft_cap": 2.0}),
    ],
)
@pytest.mark.parametrize("sequences", [SHORT, MIXED], ids=["short", "mixed"])
def test_paged(sequences, dtype, head_dim, kv_heads, group, page, scalars):
    batch = Batch(sequences, kv_heads, group, head_dim, dtype, page)
    batch.judge(batch.run(paged_attention, **scalars), **scalars)


@pytest.mark.parametrize("sequences", [[(70, 70)], [(75, 31)], [(33, 33)], [(1, 1)]])
def test_one_sequence_in_tiles_or_rows(sequences):
    batch = Batch(sequences, 1, 2, 64, F16)
    found = batch.run(paged_attention)
    batch.judge(found)
    batch.judge(batch.run(paged_attention, most=(10**9, 10**9)))
    out = torch.full_like(found, torch.nan)
    batch.run(lambda *args: paged_attention_out(*args, out=out))
    assert torch.equal(out, found)


def test_each_row_has_the_bits_of_no_batch():
    batch = Batch(MIXED, 2, 2, 32, F32, page=8)
    together = batch.run(paged_attention_invariant, window=15)
    batch.judge(together, window=15)
    for s in range(len(MIXED)):
        begin, end = batch.start[s : s + 2].tolist()
        for token in range(begin, end):
            length = int(batch.lens[s]) - (end - token - 1)
            alone = paged_attention_invariant(
                batch.q[token : token + 1], batch.k, batch.v, batch.table[s : s + 1],
                torch.tensor([0, 1]).int(), torch.tensor([max(0, length)]).int(), 1, 10**6,
                batch.scale, [], window=15,
            )  # fmt: skip
            assert torch.equal(alone[0], together[token])


def test_no_tokens_no_sequences_no_pages():
    batch = Batch(SHORT, 1, 2, 64, F32)
    none = batch.q[:0]
    tables = batch.table[:0], torch.zeros(1, dtype=torch.int32), batch.lens[:0]
    for q in (none, batch.q):
        y = paged_attention(q, batch.k, batch.v, *tables, 4, 9, 1.0, [])
        assert y.shape == q.shape
        assert not y.any()
    empty = batch.k[:0]
    y = paged_attention(
        batch.q, empty, empty, batch.table[:, :0], batch.start, batch.lens * 0, 1, 0, 1.0, []
    )
    assert not y.any()


def test_leading_dims_are_tokens():
    batch = Batch([(9, 6)], 2, 2, 32, F32)
    q = torch.randn(2, 3, 4, 32)
    start = torch.tensor([0, 6]).int()
    given = (batch.k, batch.v, batch.table, start, batch.lens, 6, 9, 0.1, [])
    assert torch.equal(
        paged_attention(q, *given), paged_attention(q.view(6, 4, 32), *given).view(q.shape)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "HND"}, "layout HND"),
        ({"heads": 3}, "3 heads on 2"),
        ({"head_dim": 257}, "257 features"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(change, words):
    given = {"heads": 4, "head_dim": 32, "layout": "NHD"} | change
    q = torch.zeros(1, given["heads"], given["head_dim"])
    cache = torch.zeros(2, 16, 2, given["head_dim"])
    start, one = torch.tensor([0, 1]).int(), torch.ones(1, 1, dtype=torch.int32)
    with pytest.raises(DomainError, match=words):
        paged_attention(q, cache, cache, one, start, one[0], 1, 1, 1.0, [], layout=given["layout"])


DENSE = [  # dtype, batch, queries, heads, kv_heads, head_dim, keys, value_dim, mask, scalars
    (F32, 2, 7, 3, 3, 64, 7, 64, None, {}),
    (F16, 2, 5, 4, 2, 32, 9, 32, (2, 1, 1), {}),
    (BF16, 2, 6, 4, 2, 16, 6, 16, (1, 4, 6), {"causal": True, "soft_cap": 30.0}),
    (F32, 1, 3, 6, 2, 24, 11, 40, (1, 1, 3), {"window": 2}),
    (F32, 2, 9, 2, 1, 17, 4, 17, None, {"causal": True, "window": 3}),
    (BF16, 3, 1, 8, 2, 128, 70, 128, None, {"soft_cap": 2.0}),
    (F16, 2, 40, 4, 1, 80, 50, 96, (2, 4, 40), {"causal": True}),
    (F32, 1, 2, 2, 1, 256, 20, 256, (1, 2, 2), {}),
    (F16, 1, 20, 2, 2, 192, 20, 128, (1, 1, 20), {"window": 7}),
    (F32, 1, 2, 2, 1, 8, 0, 8, None, {}),
    (F32, 1, 0, 2, 1, 8, 3, 8, None, {}),
]


BIASES = (None, F32, F16, BF16, torch.float64)


@pytest.mark.parametrize(
    ("case", "bias"), [(c, b) for c in DENSE for b in (BIASES if c[-2] else [None])], ids=str
)
def test_dense(case, bias):
    dtype, batch, queries, heads, kv_heads, head_dim, keys, value_dim, sizes, scalars = case
    generator = torch.Generator().manual_seed(1)
    # tokens and heads the other way round, and a row of the batch that is not there
    q, k, v = (
        torch.randn(batch + 1, h, n, d, generator=generator).to(dtype)[1:].transpose(1, 2)
        for n, h, d in ((queries, heads, head_dim), (keys, kv_heads, head_dim),
                        (keys, kv_heads, value_dim))
    )  # fmt: skip
    mask = None
    if sizes is not None:
        mask = torch.rand(*sizes, 2 * keys, generator=generator)[..., ::2] < 0.7
        mask[0, :, 0] = False  # a row that sees nothing
        if bias is not None:
            drawn = torch.randn(mask.shape, generator=generator)
            mask = drawn.masked_fill(~mask, -torch.inf).to(bias)
    found = attention(q, k, v, mask, head_dim**-0.5, **scalars)
    assert found.is_contiguous()
    wide_mask = mask if mask is None or mask.dtype is torch.bool else mask.double()
    wide = dense.reference(*(t.double() for t in (q, k, v)), wide_mask, head_dim**-0.5, **scalars)
    plain = dense.reference(q, k, v, mask, head_dim**-0.5, **scalars)
    assert found.shape == plain.shape
    if found.numel():
        close(found, wide, plain)


def test_a_query_that_is_not_finite_spoils_no_other():
    q, k = torch.randn(1, 20, 2, 32), torch.randn(1, 20, 2, 32)
    plain = attention(q, k, k, None, 0.2, causal=True)
    q[0, 9, 1] = torch.nan
    q[0, 3, 0] = torch.inf
    found = attention(q, k, k, None, 0.2, causal=True)
    assert not found[0, 9, 1].isfinite().any()
    found[0, 9, 1], found[0, 3, 0] = plain[0, 9, 1], plain[0, 3, 0]
    assert torch.equal(found, plain)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask": torch.zeros(1, 1, 3, 5, dtype=torch.int64)}, r"mask is torch\.int64"),
        ({"mask": torch.zeros(1, 1, 2, 5)}, r"mask has shape \[1, 1, 2, 5\]"),
        ({"window": -1}, "window is -1"),
        ({"k": torch.zeros(1, 5, 3, 8)}, "k has 3 heads"),
        ({"v": torch.zeros(1, 4, 2, 8)}, "do not fit together"),
    ],
)
def test_what_the_reference_refuses_is_refused(change, words):
    cache = torch.zeros(1, 5, 2, 8)
    given = {"q": torch.zeros(1, 3, 4, 8), "k": cache, "v": cache, "mask": None} | change
    if "k" in change:
        given["v"] = given["k"]
    with pytest.raises(DomainError, match=words):
        attention(**given, scale=1.0)
