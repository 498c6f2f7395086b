from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import sampling_calls
from sampling_calls import OPS, drawn, right
from trivet.errors import DomainError
from trivet_cpu.compiled.sampling import (
    penalize_logits,
    penalize_logits_,
    penalize_logits_out,
    sample_token,
    sample_token_part,
)
from trivet_cpu.on_torch import greedy_sampling

LIMITS = [{}, *sampling_calls.LIMITS]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 63, 1501])
def test_draws_what_the_oracle_draws(level, randn, dtype, vocab, limits):
    for spread in (0.3, 4.0):
        logits = (randn(40, vocab) * spread).to(dtype)
        given = drawn(40, 0.8, **limits)
        chosen = sample_token(logits, **given)
        assert chosen.dtype == torch.int64
        assert right(chosen, logits, given)
        assert vocab == 1 or not right((chosen + 1) % vocab, logits, given)


def test_equal_logits_are_kept_by_id(level):
    logits = torch.zeros(400, 1000)
    chosen = sample_token(logits, **drawn(400, top_k=3))
    assert set(chosen.tolist()) == {0, 1, 2}
    chosen = sample_token(logits, **drawn(400, top_p=0.005))
    assert set(chosen.tolist()) == set(range(5))


def test_a_top_that_rises_to_the_end(level):
    logits = torch.arange(5000.0).repeat(50, 1) / 500
    for limits in ({"top_k": 2}, {"top_k": 100}, {"top_p": 0.9}):
        given = drawn(50, **limits)
        assert right(sample_token(logits, **given), logits, given)


def test_rows_that_are_not_finite_are_greedy(level):
    rows = torch.zeros(5, 40)
    rows[0, [9, 20]] = torch.nan
    rows[1, [11, 30]] = torch.inf
    rows[2] = -torch.inf
    rows[3, :] = -torch.inf
    rows[3, 17] = -2.0
    rows[4, 5] = 3.4e38
    for limits in LIMITS:
        given = drawn(5, 0.5, **limits)
        assert sample_token(rows, **given).tolist() == [9, 11, 0, 17, 5]
    given = drawn(5, 0.0)
    assert sample_token(rows, **given).tolist() == greedy_sampling.sample_token(rows).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parts_sample_what_the_whole_samples(level, randn, dtype):
    logits = (randn(30, 500) * 2).to(dtype)
    given = drawn(30, 0.9)
    given["temperature"][::5] = 0.0
    whole = sample_token(logits, **given)
    for cuts in ([0, 500], [0, 3, 250, 251, 500], [0, 128, 256, 500]):
        parts = [sample_token_part(logits[:, a:b], a, **given) for a, b in pairwise(cuts)]
        best = torch.stack([s for s, _ in parts]).argmax(0, keepdim=True)
        assert torch.equal(torch.stack([i for _, i in parts]).gather(0, best)[0], whole)
    score, _ = sample_token_part(logits, 0)
    assert torch.equal(score, logits.float().amax(1))


def test_a_choice_depends_on_neither_batch_nor_threads_nor_strides(level, threads, randn):
    logits = randn(24, 4000)
    given = drawn(24, top_k=20, top_p=0.9)
    chosen = sample_token(logits, **given)
    for i in (0, 7, 23):
        one = {n: v[i : i + 1] for n, v in given.items()}
        assert torch.equal(sample_token(logits[i : i + 1], **one), chosen[i : i + 1])
    apart = {n: torch.stack((v, v), 1)[:, 0] for n, v in given.items()}
    wide = torch.cat((logits, logits), 1)[:, :4000]
    with threads(3):
        assert torch.equal(sample_token(wide, **apart), chosen)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("temperature", -0.1, "a temperature must be 0 or positive"),
        ("temperature", float("nan"), "a temperature must be 0 or positive"),
        ("top_p", 0.0, r"top_p must be in \(0, 1\]"),
        ("min_p", 1.5, r"min_p must be in \[0, 1\]"),
    ],
)
def test_numbers_without_meaning_are_refused(name, value, text):
    given = drawn(2, top_p=0.5, min_p=0.1)
    given[name][1] = value
    with pytest.raises(DomainError, match=text):
        sample_token(torch.ones(2, 9), **given)
    with pytest.raises(DomainError, match=rf"{name}\[1\]"):
        OPS["sample_token"].reference(torch.ones(2, 9), **given)


def test_a_temperature_needs_a_seed():
    given = drawn(2)
    del given["seed"]
    with pytest.raises(DomainError, match="seed"):
        sample_token(torch.ones(2, 9), **given)
    with pytest.raises(DomainError, match="temperature is given"):
        greedy_sampling.sample_token(torch.ones(2, 9), **given)


def history(randn):
    tokens = torch.tensor([[3, 3, -1, 5, 3, 99], [-1, 0, 0, 0, 7, 7], [1, 2, 3, 4, 5, 6]]).int()
    prompt = torch.tensor([2, 0, 6]).int()
    penalties = torch.tensor([1.5, 0.5, 2.0]), torch.tensor([0.5, -1.0, 9.0]), torch.ones(3) * 0.25
    return randn(3, 100) * 3, tokens, prompt, *penalties


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_penalties(level, randn, dtype):
    logits, *rest = history(randn)
    logits = logits.to(dtype)
    logits[0, 3], logits[1, 7], logits[2, 1] = torch.nan, -torch.inf, torch.inf
    want = OPS["penalize_logits"].reference(logits, *rest)
    torch.testing.assert_close(penalize_logits(logits, *rest), want, equal_nan=True, rtol=0, atol=0)
    out = torch.empty_like(logits)
    penalize_logits_out(logits, *rest, out=out)
    torch.testing.assert_close(out, want, equal_nan=True, rtol=0, atol=0)
    penalize_logits_(logits, *rest)
    torch.testing.assert_close(logits, want, equal_nan=True, rtol=0, atol=0)


def test_penalties_are_refused_where_they_mean_nothing(randn):
    logits, tokens, *rest = history(randn)
    with pytest.raises(DomainError, match="not in the vocabulary"):
        penalize_logits(logits[:, :99].contiguous(), tokens, *rest)
    rest[1] = torch.zeros(3)
    with pytest.raises(DomainError, match="repetition must be positive"):
        penalize_logits(logits, tokens, *rest)
    with pytest.raises(DomainError, match="repetition"):
        OPS["penalize_logits"].reference(logits, tokens, *rest)
