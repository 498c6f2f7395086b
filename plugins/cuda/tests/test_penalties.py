from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.catalogue import operators
from trivet_triton.kernels.penalties import (
    penalize_logits,
    penalize_logits_,
    penalize_logits_out,
)

REFERENCE = operators()["penalize_logits"].reference


def randn(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3))


def history(vocab):
    tokens = torch.tensor([[3, 3, -1, 5, 3, 99], [-1, 0, 0, 0, 7, 7], [1, 2, 3, 4, 5, 6]]).int()
    prompt = torch.tensor([2, 0, 6]).int()
    penalties = torch.tensor([1.5, 0.5, 2.0]), torch.tensor([0.5, -1.0, 9.0]), torch.ones(3) * 0.25
    return randn(3, vocab) * 3, tokens, prompt, *penalties


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [100, 4112])
def test_all_forms_give_what_the_reference_gives(dtype, vocab):
    logits, tokens, *rest = history(vocab)
    tokens[0, 0] = vocab - 1
    logits = logits.to(dtype)
    logits[0, 3], logits[1, 7], logits[2, 1] = torch.nan, -torch.inf, torch.inf
    want = REFERENCE(logits, tokens, *rest)
    exact = {"equal_nan": True, "rtol": 0, "atol": 0}
    torch.testing.assert_close(penalize_logits(logits, tokens, *rest), want, **exact)
    out = torch.empty_like(logits)
    penalize_logits_out(logits, tokens, *rest, out=out)
    torch.testing.assert_close(out, want, **exact)
    penalize_logits_(logits, tokens, *rest)
    torch.testing.assert_close(logits, want, **exact)


def test_long_histories_are_counted_in_pieces():
    logits = randn(2, 50)
    tokens = torch.randint(-1, 50, (2, 2500), generator=torch.Generator().manual_seed(1)).int()
    rest = [torch.tensor([1024, 2400]).int(), *(torch.tensor([1.25, 0.5]) for _ in range(3))]
    torch.testing.assert_close(
        penalize_logits(logits, tokens, *rest),
        REFERENCE(logits, tokens, *rest),
        rtol=1e-6,
        atol=1e-4,
    )


def test_no_history_and_no_rows():
    logits, tokens, *rest = history(20)
    same = penalize_logits(logits, tokens[:, :0].contiguous(), *rest)
    assert torch.equal(same, logits)
    none = penalize_logits(logits[:0], tokens[:0], *(t[:0] for t in rest))
    assert none.shape == (0, 20)
