from __future__ import annotations

from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton")

from trivet.catalogue import operators
from trivet.errors import DomainError
from trivet_triton.kernels import best_candidate, limited_candidate
from trivet_triton.kernels.sampling import sample_token, sample_token_part

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
@pytest.mark.parametrize(("vocab", "dtype"), [(1, F32), (63, BF16), (1501, F32), (9001, F16)])
def test_draws_what_the_oracle_draws(vocab, dtype, limits):
    logits = randn(3, vocab) * torch.tensor([0.3, 4.0, 1.0]).unsqueeze(1)
    logits, given = logits.to(dtype), drawn(3, 0.8, **limits)
    chosen = sample_token(logits, **given)
    assert chosen.dtype == torch.int64
    assert right(chosen, logits, given)
    assert vocab == 1 or not right((chosen + 1) % vocab, logits, given)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    "limits", [{"top_p": 0.9}, {"top_k": 800}, {"top_k": 800, "top_p": 0.7, "min_p": 0.01}], ids=str
)
def test_rows_too_flat_for_the_list_are_halved(monkeypatch, dtype, limits):
    """With room for few tokens, the row is halved in passes until the rest is few."""
    monkeypatch.setattr(limited_candidate, "ROOM", 64)
    limited_candidate._launch.cache_clear()
    logits = randn(3, 2000, dtype=dtype) * torch.tensor([0.2, 1.0, 3.0], dtype=dtype).unsqueeze(1)
    logits[0, :500] = -torch.inf
    given = drawn(3, **limits)
    chosen = sample_token(logits, **given)
    limited_candidate._launch.cache_clear()
    assert right(chosen, logits, given)


@pytest.mark.parametrize("room", [4096, 64])
def test_equal_logits_are_kept_by_id(monkeypatch, room):
    monkeypatch.setattr(limited_candidate, "ROOM", room)
    limited_candidate._launch.cache_clear()
    logits = torch.zeros(4, 1000)
    logits[1::2, ::2] = -0.0  # equal, too
    for most, limits in (
        (2, {"top_k": 2}),
        (4, {"top_p": 0.0035}),
        (2, {"top_k": 3, "top_p": 0.5}),
    ):
        given = drawn(4, **limits)
        chosen = sample_token(logits, **given)
        assert int(chosen.max()) < most
        assert right(chosen, logits, given)
    limited_candidate._launch.cache_clear()


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
    logits, given = randn(2, 9000), drawn(2)
    seen = set()
    for most in (1, 2, 64):
        monkeypatch.setattr(best_candidate, "MOST_PARTS", most)
        best_candidate._launches.cache_clear()
        seen.add(tuple(sample_token(logits, **given).tolist() + sample_token(logits).tolist()))
    best_candidate._launches.cache_clear()
    assert len(seen) == 1


@pytest.mark.parametrize(("seqs", "tiles"), [(1, 1), (1, 63), (1, 200), (7, 9), (600, 40)])
def test_parts_cover_all_tiles_and_none_is_empty(seqs, tiles):
    parts, each = best_candidate.split_of(seqs, tiles)
    assert 1 <= parts <= best_candidate.MOST_PARTS
    assert (parts - 1) * each < tiles <= parts * each


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
