"""Calls of sampling, what judges them, and the tests that hold for whoever samples."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from trivet.catalogue import operators

OPS = operators()
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
LIMITS = [
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 300},
    {"top_p": 0.2},
    {"top_p": 0.95},
    {"min_p": 0.1},
    {"top_k": 50, "top_p": 0.8},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.02},
]


def randn(*sizes, dtype=F32, seed=3):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(seqs, heat=1.0, **limits):
    """Arguments of a sampled call, each sequence with a seed and a position of its own."""
    dtypes = {"top_k": torch.int32, "top_p": F32, "min_p": F32}
    made = {n: torch.full((seqs,), v, dtype=dtypes[n]) for n, v in limits.items()}
    made["temperature"] = torch.full((seqs,), heat)
    made["seed"] = torch.arange(seqs) * 0x9E3779B97F4A7C15 % 2**62 - 2**61
    made["position"] = torch.arange(seqs) * 77_777_777_777
    return made


def right(chosen, logits, given):
    """Every choice is one that the declared scores leave open."""
    wide = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
    scores = OPS["sample_token"].budget.scores(logits.double(), **wide)
    own = scores.upper.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return bool((own >= scores.lower.amax(1)).all())


class Sampling:
    """Tests of a vendor's ``sample_token`` and ``sample_token_part``, given by a subclass."""

    sample_token = sample_token_part = None

    @pytest.mark.parametrize("limits", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
    def test_rows_that_are_not_finite_are_greedy(self, limits):
        rows = torch.zeros(6, 40)
        rows[0, [9, 20]] = torch.nan
        rows[1, [11, 30]] = torch.inf
        rows[2] = -torch.inf
        rows[3, :] = -torch.inf
        rows[3, 17] = -2.0
        rows[4, 5] = 3.4e38
        rows[5, 7] = -torch.nan
        assert self.sample_token(rows, **drawn(6, 0.5, **limits)).tolist() == [9, 11, 0, 17, 5, 7]
        greedy = self.sample_token(rows, **drawn(6, 0.0, **limits)).tolist()
        assert greedy == self.sample_token(rows).tolist() == [9, 11, 0, 17, 5, 7]

    def test_limits_that_limit_nothing_change_nothing(self):
        logits = randn(3, 500)
        plain = self.sample_token(logits, **drawn(3))
        for limits in ({"top_k": 0}, {"top_k": -1}, {"top_k": 500}, {"top_p": 1.0}, {"min_p": 0.0}):
            assert torch.equal(self.sample_token(logits, **drawn(3, **limits)), plain)
        assert torch.equal(
            self.sample_token(logits, top_k=drawn(3, top_k=1)["top_k"]), self.sample_token(logits)
        )

    def test_rows_of_every_kind_in_one_batch(self):
        logits, given = randn(6, 300), drawn(6, top_k=5, top_p=0.9, min_p=0.05)
        given["top_k"][::2] = 0
        given["top_p"][::3] = 1.0
        given["min_p"][1::2] = 0.0
        given["temperature"][5] = 0.0
        chosen = self.sample_token(logits, **given)
        assert right(chosen, logits, given)
        alone = {n: v[3:4] for n, v in given.items()}
        assert torch.equal(self.sample_token(logits[3:4], **alone), chosen[3:4])
        wide = torch.cat((logits, logits), 1)[:, :300]
        assert torch.equal(self.sample_token(wide, **given), chosen)
        assert torch.equal(self.sample_token(logits.t().contiguous().t(), **given), chosen)

    @pytest.mark.parametrize("dtype", [F32, BF16, F16])
    def test_parts_sample_what_the_whole_samples(self, dtype):
        logits, given = (randn(4, 500) * 2).to(dtype), drawn(4, 0.9)
        given["temperature"][::3] = 0.0
        whole = self.sample_token(logits, **given)
        for cuts in ([0, 500], [0, 3, 250, 500]):
            parts = [self.sample_token_part(logits[:, a:b], a, **given) for a, b in pairwise(cuts)]
            best = torch.stack([s for s, _ in parts]).argmax(0, keepdim=True)
            assert torch.equal(torch.stack([i for _, i in parts]).gather(0, best)[0], whole)
        score, chosen = self.sample_token_part(logits, 7)
        assert torch.equal(score, logits.float().amax(1))
        assert torch.equal(chosen, logits.float().argmax(1) + 7)
        wide = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
        score, chosen = self.sample_token_part(logits, 9, **given)
        want, ids = OPS["sample_token_part"].reference(logits.double(), 9, **wide)
        assert torch.equal(chosen, ids)
        torch.testing.assert_close(score, want, rtol=2**-20, atol=2**-18)
