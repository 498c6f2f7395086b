from __future__ import annotations

import pytest
import torch

from sampling_calls import LIMITS, OPS, Sampling, drawn, randn, right
from trivet.errors import DomainError
from trivet_metal.operators import sampling
from trivet_metal.operators.penalties import (
    penalize_logits,
    penalize_logits_,
    penalize_logits_out,
)
from trivet_metal.operators.sampling import sample_token, sample_token_part

pytestmark = pytest.mark.usefixtures("emulator")

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


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


class TestSampling(Sampling):
    sample_token = staticmethod(sample_token)
    sample_token_part = staticmethod(sample_token_part)


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
