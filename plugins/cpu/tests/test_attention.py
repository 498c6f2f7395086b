from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu import isa
from trivet_cpu.compiled.attention import paged_attention, paged_attention_out

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# (keys, queries) of each sequence: decode, empty, prefill with and without a past, a chunk edge,
# more queries than keys
BATCH = [(1, 1), (0, 0), (130, 1), (77, 77), (300, 33), (64, 2), (5, 9), (0, 2)]
GROUPS = [(64, 3, 3), (128, 2, 1), (80, 1, 7), (20, 2, 5), (128, 1, 40)]  # dim, kv heads, group


class Batch:
    """A ragged batch over pages in random order, with rows before and behind the sequences."""

    def __init__(self, randn, sequences, head_dim, kv_heads, group, dtype, size=16):
        self.lens = [n for n, _ in sequences]
        widest = max(self.lens) // size + 2
        blocks = len(sequences) * widest
        self.k, self.v = (randn(blocks, size, kv_heads, head_dim, dtype=dtype) for _ in range(2))
        self.table = torch.randperm(blocks, generator=torch.Generator().manual_seed(3))
        self.table = self.table.view(len(sequences), widest).int()
        counts = torch.tensor([2] + [q for _, q in sequences])
        self.start = counts.cumsum(0).int()
        tokens = int(self.start[-1]) + 3
        packed = randn(tokens, (kv_heads * group + 2) * head_dim, dtype=dtype)
        self.q = packed.view(tokens, -1, head_dim)[:, 1:-1]
        self.scale = head_dim**-0.5

    def run(self, window=0, soft_cap=0.0):
        return paged_attention(
            self.q, self.k, self.v, self.table, self.start, torch.tensor(self.lens).int(),
            10**6, 10**6, self.scale, [], window, soft_cap,
        )  # fmt: skip

    def alone(self, s, i, window=0, soft_cap=0.0):
        """Query i of sequence s as the only one of a batch of its own."""
        first, last = int(self.start[s]), int(self.start[s + 1])
        length = self.lens[s] - (last - first) + i + 1
        return paged_attention(
            self.q[first + i : first + i + 1], self.k, self.v, self.table[s : s + 1],
            torch.tensor([0, 1]).int(), torch.tensor([length]).int(), 1, length, self.scale, [],
            window, soft_cap,
        )[0]  # fmt: skip

    def in_float64(self, window=0, soft_cap=0.0):
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        group = self.q.shape[1] // self.k.shape[2]
        for s, length in enumerate(self.lens):
            pages = self.table[s].long()
            k = self.k[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
            v = self.v[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
            first, last = int(self.start[s]), int(self.start[s + 1])
            for token in range(first, last):
                end = length - (last - token) + 1
                begin = max(0, end - window) if window else 0
                if end <= begin:
                    continue
                scores = torch.einsum("hd,jhd->hj", self.q[token].double(), k[begin:end])
                scores = scores * self.scale
                if soft_cap:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                out[token] = torch.einsum("hj,jhd->hd", scores.softmax(-1), v[begin:end])
        return out


@pytest.mark.parametrize(
    ("window", "soft_cap"), [(0, 0.0), (17, 0.0), (1, 0.0), (0, 2.0), (100, 30.0)]
)
@pytest.mark.parametrize(("head_dim", "kv_heads", "group"), GROUPS)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_values(level, randn, head_dim, kv_heads, group, window, soft_cap, dtype):
    batch = Batch(randn, BATCH, head_dim, kv_heads, group, dtype)
    y, exact = batch.run(window, soft_cap), batch.in_float64(window, soft_cap)
    assert y.is_contiguous()
    # bfloat16: half a unit of the result; float32: 300 products of unit size
    unit = {F32: 1e-5, BF16: 2**-8, F16: 2**-11}[dtype]
    tolerance = {"rtol": unit, "atol": 1e-5 if dtype == F32 else 2e-5}
    torch.testing.assert_close(y.double(), exact, **tolerance)
    assert not y[:2].any()  # before the first sequence
    assert not y[-3:].any()  # behind the last
    assert not y[-5:-3].any()  # a sequence without keys
    first = int(batch.start[6])
    assert not y[first : first + 4].any()  # queries before the first key
    assert y[first + 4].any()


@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (17, 5.0)])
@pytest.mark.parametrize(("head_dim", "kv_heads", "group"), GROUPS)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_query_gives_the_same_bits_in_any_batch(
    level, randn, head_dim, kv_heads, group, window, soft_cap, dtype
):
    batch = Batch(randn, BATCH, head_dim, kv_heads, group, dtype)
    y = batch.run(window, soft_cap)
    for s, i in ((2, 0), (3, 0), (3, 1), (3, 40), (3, 76), (4, 0), (4, 32), (5, 1), (6, 8)):
        mine = y[int(batch.start[s]) + i]
        assert torch.equal(batch.alone(s, i, window, soft_cap), mine), (s, i)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_threads_do_not_matter(level, randn, threads, dtype):
    batch = Batch(randn, BATCH, 64, 3, 3, dtype)
    with threads(1):
        y = batch.run()
    for count in (2, 3, 7):
        with threads(count):
            assert torch.equal(batch.run(), y)


@pytest.mark.parametrize("size", [1, 3, 16, 64, 256])
def test_pages_of_any_size_and_order(level, randn, size):
    batch = Batch(randn, [(70, 3), (9, 9)], 32, 2, 2, F32, size)
    torch.testing.assert_close(batch.run().double(), batch.in_float64(), rtol=1e-5, atol=1e-5)
    shuffled = torch.randperm(batch.k.shape[0])
    place = torch.empty_like(shuffled)
    place[shuffled] = torch.arange(len(shuffled))
    before = batch.run()
    batch.k, batch.v = batch.k[shuffled], batch.v[shuffled]
    batch.table = place[batch.table.long()].int()
    assert torch.equal(batch.run(), before)


def test_out_form_and_contiguous_queries(level, randn):
    batch = Batch(randn, BATCH, 64, 2, 2, F32)
    out = torch.full(batch.q.shape, torch.nan)
    paged_attention_out(
        batch.q.contiguous(), batch.k, batch.v, batch.table, batch.start,
        torch.tensor(batch.lens).int(), 99, 999, batch.scale, [], out=out,
    )  # fmt: skip
    assert torch.equal(out, batch.run())


def test_tables_with_gaps(level, randn):
    batch = Batch(randn, BATCH, 32, 2, 2, F32)
    y = batch.run()
    batch.table = batch.table.repeat_interleave(2, 1)[:, ::2]
    batch.start = batch.start.repeat_interleave(3)[::3]
    assert torch.equal(batch.run(), y)


@pytest.mark.parametrize("head_dim", [20, 64])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_only_visible_values_can_spoil_a_query(level, randn, head_dim, dtype):
    batch = Batch(randn, [(100, 100)], head_dim, 1, 1, dtype)
    clean = batch.run(window=30)

    def place(key):
        return int(batch.table[0, key // 16]), key % 16

    batch.k[place(50)] = torch.nan
    batch.v[place(70)] = torch.inf
    y = batch.run(window=30)
    hurt = [i for i in range(100) if not torch.equal(y[2 + i], clean[2 + i])]
    assert hurt == list(range(50, 100))  # 50..79 see key 50, 70..99 see key 70
    assert y[2 + 50 : 2 + 80].isnan().all()
    assert y[2 + 80 : 2 + 100].isinf().all()
    batch.k[:], batch.v[:] = torch.nan, torch.nan  # all pages, and pages no sequence has
    batch.lens = [0]
    assert not batch.run().any()


def test_scores_of_minus_infinity(level, randn):
    batch = Batch(randn, [(3, 1)], 32, 1, 1, F32)
    batch.q[:] = 1.0
    first = (int(batch.table[0, 0]), 0)
    batch.k[first] = -torch.inf
    y = batch.run()[2]
    torch.testing.assert_close(y.double(), batch.in_float64()[2], rtol=1e-5, atol=1e-5)
    batch.k[:] = -torch.inf  # no weight anywhere: softmax is NaN, and so is the result
    assert batch.run()[2].isnan().all()


def test_distant_scores_underflow_to_nothing(level, randn):
    batch = Batch(randn, [(200, 4)], 64, 1, 2, F32)
    batch.q *= 100
    torch.testing.assert_close(batch.run().double(), batch.in_float64(), rtol=1e-4, atol=1e-4)


def test_levels_agree(randn):
    batch, results = Batch(randn, BATCH, 64, 3, 3, F32), []
    for name in isa.levels():
        with isa.using(name):
            results.append(batch.run())
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-5)


def test_refusals(randn):
    batch = Batch(randn, [(20, 2)], 32, 2, 2, F32)
    good = {"q": batch.q, "k": batch.k, "v": batch.v, "table": batch.table, "start": batch.start,
            "lens": torch.tensor(batch.lens).int(), "window": 0, "cap": 0.0}  # fmt: skip
    refused = [
        ({"q": batch.q.double()}, "dtype"),
        ({"k": batch.k.bfloat16()}, "one dtype"),
        ({"k": batch.k[0]}, "both caches"),
        ({"k": torch.cat((batch.k, batch.k), 2)[:, :, 2:]}, "contiguous"),
        ({"v": batch.v[:1]}, "both caches"),
        ({"q": batch.q[..., :16]}, "head_dim"),
        ({"q": batch.q[:, :3]}, "divide"),
        ({"table": batch.table.long()}, "int32"),
        ({"start": batch.start[:1]}, "seqs"),
        ({"lens": torch.tensor([10**4]).int()}, "longer than"),
        ({"lens": torch.tensor([-1]).int()}, "longer than"),
        ({"table": batch.table + 100}, "outside of the cache"),
        ({"table": batch.table - 100}, "outside of the cache"),
        ({"start": torch.tensor([4, 2]).int()}, "decrease"),
        ({"start": torch.tensor([0, 99]).int()}, "within the tokens"),
        ({"window": -1}, "negative"),
        ({"cap": -1.0}, "negative"),
        ({"q": batch.q.transpose(1, 2).contiguous().transpose(1, 2)}, "dense"),
    ]
    for change, words in refused:
        a = {**good, **change}
        with pytest.raises(DomainError, match=words):
            paged_attention(
                a["q"], a["k"], a["v"], a["table"], a["start"], a["lens"], 2, 20, 1.0, [],
                a["window"], a["cap"],
            )  # fmt: skip


def test_an_unknown_layout_is_refused(randn):
    b = Batch(randn, [(20, 2)], 32, 2, 2, F32)
    inputs = (b.q, b.k, b.v, b.table, b.start, torch.tensor(b.lens).int(), 2, 20, 1.0, [])
    with pytest.raises(DomainError, match="'HND'"):
        paged_attention(*inputs, layout="HND")
    with pytest.raises(DomainError, match="'HND'"):
        paged_attention_out(*inputs, layout="HND", out=torch.empty_like(b.q))
