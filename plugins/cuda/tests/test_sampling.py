from __future__ import annotations

import pytest
import torch

import required
from sampling_calls import LIMITS, Sampling, drawn, randn, right

required.triton()

from trivet.errors import DomainError
from trivet_triton.kernels import best_candidate, limited_candidate
from trivet_triton.kernels.sampling import sample_token, sample_token_part

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


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


class TestSampling(Sampling):
    sample_token = staticmethod(sample_token)
    sample_token_part = staticmethod(sample_token_part)


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
