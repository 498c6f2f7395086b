"""Sequences over pages, and what judges what was attended over them."""

from __future__ import annotations

import torch

from trivet.catalogue.attention import paged_attention as operator


def close(found, exact, plain):
    """Errors at most three times those of the reference in the same dtype."""
    error, allowed = ((t.double() - exact).abs() for t in (found, plain))
    assert error.square().mean().sqrt() <= 3 * allowed.square().mean().sqrt()
    assert error.max() <= 3 * allowed.max()
    assert not found[(exact == 0).all(-1)].any()


class Batch:
    """Sequences of ``(keys, queries)`` over pages in random order.

    Rows before and behind the sequences are covered by none; page tables hold garbage behind the
    last page of a sequence; what no sequence uses of the caches is NaN. Queries are a slice of a
    packed projection.
    """

    def __init__(self, sequences, kv_heads, group, head_dim, dtype, page=16, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def randn(*sizes):
            return torch.randn(*sizes, generator=generator).to(dtype)

        lens, queries = zip(*sequences, strict=True)
        widest = -(-max(lens) // page) + 1
        blocks = len(lens) * widest + 2
        table = torch.randperm(blocks, generator=generator)[: len(lens) * widest]
        self.table = table.view(len(lens), widest).int()
        self.k, self.v = (randn(blocks, page, kv_heads, head_dim) for _ in range(2))
        used = torch.zeros(blocks, page, dtype=torch.bool)
        for s, length in enumerate(lens):
            for j in range(length):
                used[self.table[s, j // page], j % page] = True
            self.table[s, -(-length // page) :] = 1 << 30
        self.k[~used], self.v[~used] = torch.nan, torch.nan
        self.start = torch.tensor([2, *queries]).cumsum(0).int()
        self.lens = torch.tensor(lens).int()
        self.tokens = int(self.start[-1]) + 3
        packed = randn(self.tokens, (kv_heads * group + 2) * head_dim)
        self.q = packed.view(self.tokens, -1, head_dim)[:, 1:-1]
        self.scale = head_dim**-0.5
        self.most = max(queries), max(lens)

    @property
    def tensors(self):
        return self.q, self.k, self.v, self.table, self.start, self.lens

    def run(self, function, *, most=None, **scalars):
        return function(*self.tensors, *(most or self.most), self.scale, [], **scalars)

    def alone(self, function, s, first, last, **scalars):
        """Queries ``first .. last`` of sequence s as a batch of their own."""
        begin, behind = int(self.start[s]), int(self.start[s + 1] - self.start[s]) - last
        length = int(self.lens[s]) - behind
        start, lens = torch.tensor([0, last - first]).int(), torch.tensor([length]).int()
        q, table = self.q[begin + first : begin + last], self.table[s : s + 1]
        most = last - first, length
        return function(q, self.k, self.v, table, start, lens, *most, self.scale, [], **scalars)

    def judge(self, found, **scalars):
        assert found.is_contiguous()
        assert found.dtype is self.q.dtype
        wide = [t.double() if t.is_floating_point() else t for t in self.tensors]
        exact = operator.reference(*wide, *self.most, self.scale, [], **scalars)
        close(found, exact, self.run(operator.reference, **scalars))
