from __future__ import annotations

import pytest
import torch

from trivet_cpu.on_torch.embedding import embedding
from trivet_cpu.on_torch.greedy_sampling import sample_token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_embedding_gathers_rows(randn, dtype):
    weight = randn(101, 8, dtype=dtype)
    ids = torch.tensor([[0, 100], [7, 7], [3, 50]])
    y = embedding(ids, weight)
    assert torch.equal(y, torch.stack([weight[i] for i in ids.flatten().tolist()]).view(3, 2, 8))
    assert embedding(ids[:0], weight).shape == (0, 2, 8)
    with pytest.raises(IndexError):
        embedding(torch.tensor([101]), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 15, 64, 1000, 49152])
def test_ties_go_to_the_lowest_id_and_nan_wins(dtype, vocab):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(-3, 4, (50, vocab), generator=generator).to(dtype)  # full of ties
    logits[10:20, vocab // 2 :: 7] = torch.nan
    logits[20, :] = torch.nan
    logits[21, :] = -torch.inf
    logits[22, vocab // 3] = torch.inf
    logits[23, :] = 0.0
    logits[23, vocab // 2] = -0.0
    chosen = sample_token(logits)
    assert chosen.dtype == torch.int64
    for row, pick in zip(logits.double(), chosen.tolist(), strict=True):
        wanted = row.isnan() if row.isnan().any() else row == row.max()
        assert pick == int(wanted.nonzero()[0])


def test_no_sequences():
    assert sample_token(torch.ones(0, 7)).shape == (0,)


def test_strided_logits_and_threads(randn, threads):
    logits = randn(64, 3000)
    chosen = sample_token(logits)
    assert torch.equal(sample_token(torch.stack((logits, -logits), -1)[..., 0]), chosen)
    for count in (1, 3):
        with threads(count):
            assert torch.equal(sample_token(logits), chosen)
    assert torch.equal(sample_token(logits[5:6]), chosen[5:6])
