from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from trivet.catalogue import operators
from trivet.errors import DomainError
from trivet_metal.operators import sampling
from trivet_metal.operators.penalties import (
    penalize_logits,
    penalize_logits_,
    penalize_logits_out,
)
from trivet_metal.operators.sampling import sample_token, sample_token_part

pytestmark = pytest.mark.usefixtures("emulator")

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


@pytest.mark.parametrize("limits", [{}, *LIMITS], ids=str)
@pytest.mark.parametrize(
    ("vocab", "dtype"), [(1, F32), (31, F16), (33, BF16), (1023, F16), (1025, F32)]
)
def test_draws_what_the_scores_leave_open(vocab, dtype, limits):
    logits = randn(3, vocab) * torch.tensor([0.3, 4.0, 1.0]).unsqueeze(1)
    logits, given = logits.to(dtype), drawn(3, 0.8, **limits)
    chosen = sample_token(logits, **given)
    assert chosen.dtype == torch.int64
    assert right(chosen, logits, given)
    assert vocab == 1 or not right((chosen + 1) % vocab, logits, given)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_equal_logits_are_kept_by_id(dtype):
    logits = torch.zeros(4, 1000, dtype=dtype)
    logits[1::2, ::2] = -0.0  # equal, too
    logits[2:] -= 3.0
    for most, limits in (
        (2, {"top_k": 2}),
        (4, {"top_p": 0.0035}),
        (2, {"top_k": 3, "top_p": 0.5}),
        (1, {"top_k": 1, "min_p": 1.0}),
    ):
        given = drawn(4, **limits)
        chosen = sample_token(logits, **given)
        assert int(chosen.max()) < most
        assert right(chosen, logits, given)


@pytest.mark.parametrize("limits", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
def test_rows_that_are_not_finite_are_greedy(limits):
    rows = torch.zeros(6, 40)
    rows[0, [9, 20]] = torch.nan
    rows[1, [11, 30]] = torch.inf
    rows[2] = -torch.inf
    rows[3, :] = -torch.inf
    rows[3, 17] = -2.0
    rows[4, 5] = 3.4e38
    rows[5, 7] = -torch.nan
    assert sample_token(rows, **drawn(6, 0.5, **limits)).tolist() == [9, 11, 0, 17, 5, 7]
    greedy = sample_token(rows, **drawn(6, 0.0, **limits)).tolist()
    assert greedy == sample_token(rows).tolist() == [9, 11, 0, 17, 5, 7]


def test_limits_that_limit_nothing_change_nothing():
    logits = randn(3, 500)
    plain = sample_token(logits, **drawn(3))
    for limits in ({"top_k": 0}, {"top_k": -1}, {"top_k": 500}, {"top_p": 1.0}, {"min_p": 0.0}):
        assert torch.equal(sample_token(logits, **drawn(3, **limits)), plain)
    assert torch.equal(sample_token(logits, top_k=drawn(3, top_k=1)["top_k"]), sample_token(logits))


def test_rows_of_every_kind_in_one_batch():
    logits, given = randn(6, 300), drawn(6, top_k=5, top_p=0.9, min_p=0.05)
    given["top_k"][::2] = 0
    given["top_p"][::3] = 1.0
    given["min_p"][1::2] = 0.0
    given["temperature"][5] = 0.0
    chosen = sample_token(logits, **given)
    assert right(chosen, logits, given)
    alone = {n: v[3:4] for n, v in given.items()}
    assert torch.equal(sample_token(logits[3:4], **alone), chosen[3:4])
    wide = torch.cat((logits, logits), 1)[:, :300]
    assert torch.equal(sample_token(wide, **given), chosen)
    assert torch.equal(sample_token(logits.t().contiguous().t(), **given), chosen)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_parts_sample_what_the_whole_samples(dtype):
    logits, given = (randn(4, 500) * 2).to(dtype), drawn(4, 0.9)
    given["temperature"][::3] = 0.0
    whole = sample_token(logits, **given)
    for cuts in ([0, 500], [0, 3, 250, 500]):
        parts = [sample_token_part(logits[:, a:b], a, **given) for a, b in pairwise(cuts)]
        best = torch.stack([s for s, _ in parts]).argmax(0, keepdim=True)
        assert torch.equal(torch.stack([i for _, i in parts]).gather(0, best)[0], whole)
    score, chosen = sample_token_part(logits, 7)
    assert torch.equal(score, logits.float().amax(1))
    assert torch.equal(chosen, logits.float().argmax(1) + 7)
    wide = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
    score, chosen = sample_token_part(logits, 9, **given)
    want, ids = OPS["sample_token_part"].reference(logits.double(), 9, **wide)
    assert torch.equal(chosen, ids)
    torch.testing.assert_close(score, want, rtol=2**-20, atol=2**-18)


def test_no_split_of_a_row_changes_a_choice(monkeypatch):
    logits, given = randn(2, 3001), drawn(2)
    seen = set()
    for part in (4096, 1500, 100):
        monkeypatch.setattr(sampling, "_PART", part)
        seen.add(tuple(sample_token(logits, **given).tolist() + sample_token(logits).tolist()))
    assert len(seen) == 1


def test_noise_is_left_out_only_where_it_cannot_matter(monkeypatch):
    monkeypatch.setattr(sampling, "_PART", 10**6)  # several blocks of noise for each thread
    logits, given = randn(4, 6001) * 0.1, drawn(4)
    assert right(sample_token(logits, **given), logits, given)


def test_no_rows():
    assert sample_token(torch.ones(0, 9)).shape == (0,)
    assert sample_token(torch.ones(0, 9), **drawn(0, top_k=2)).shape == (0,)
    assert [t.shape for t in sample_token_part(torch.ones(0, 9), 3)] == [(0,), (0,)]


def test_a_temperature_needs_a_seed():
    given = drawn(2)
    del given["seed"]
    for call in (sample_token, lambda *a, **k: sample_token_part(*a, 0, **k)):
        with pytest.raises(DomainError, match="seed is not"):
            call(torch.ones(2, 9), **given)
    with pytest.raises(DomainError, match="first=-1"):
        sample_token_part(torch.ones(2, 9), -1)


def history(vocab):
    tokens = torch.tensor([[3, 3, -1, 5, 3, 99], [-1, 0, 0, 0, 7, 7], [1, 2, 3, 4, 5, 6]]).int()
    prompt = torch.tensor([2, 0, 6]).int()
    penalties = torch.tensor([1.5, 0.5, 2.0]), torch.tensor([0.5, -1.0, 9.0]), torch.ones(3) * 0.25
    return randn(3, vocab) * 3, tokens, prompt, *penalties


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("vocab", [100, 1031])
def test_all_forms_of_penalties_give_what_the_reference_gives(dtype, vocab):
    logits, tokens, *rest = history(vocab)
    tokens[0, 0] = vocab - 1
    logits = logits.to(dtype)
    logits[0, 3], logits[1, 7], logits[2, 1] = torch.nan, -torch.inf, torch.inf
    want = OPS["penalize_logits"].reference(logits, tokens, *rest)
    exact = {"equal_nan": True, "rtol": 0, "atol": 0}
    torch.testing.assert_close(penalize_logits(logits, tokens, *rest), want, **exact)
    strided = torch.stack((logits, logits), -1)[..., 0]
    torch.testing.assert_close(penalize_logits(strided, tokens, *rest), want, **exact)
    out = torch.empty_like(logits)
    penalize_logits_out(logits, tokens, *rest, out=out)
    torch.testing.assert_close(out, want, **exact)
    penalize_logits_(logits, tokens, *rest)
    torch.testing.assert_close(logits, want, **exact)


def test_many_entries_of_one_token_are_counted():
    logits = randn(2, 5)
    tokens = torch.randint(-1, 6, (2, 1000), generator=torch.Generator().manual_seed(1)).int()
    tokens[tokens == 5] = 2**30  # beyond the vocabulary: as on a device, of no effect
    rest = [torch.tensor([300, 900]).int(), *(torch.tensor([1.25, 0.5]) for _ in range(3))]
    want = OPS["penalize_logits"].reference(logits, tokens.where(tokens < 5, -1), *rest)
    torch.testing.assert_close(penalize_logits(logits, tokens, *rest), want)


def test_penalties_without_a_history_or_rows():
    logits, tokens, *rest = history(20)
    same = penalize_logits(logits, tokens[:, :0].contiguous(), *rest)
    assert torch.equal(same, logits)
    none = penalize_logits(logits[:0], tokens[:0], *(t[:0] for t in rest))
    assert none.shape == (0, 20)
