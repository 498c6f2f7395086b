"""Penalties on tokens that a sequence already has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._choices import within
from trivet.catalogue._numerics import up
from trivet.contracts import Cases, operator


def _oracle(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Goes through the tokens that each sequence has, one by one."""
    result = logits.clone()
    for s, (row, prompt) in enumerate(zip(tokens.tolist(), prompt_lens.tolist(), strict=True)):
        answer = [t for t in row[max(prompt, 0) :] if t >= 0]
        for token in {t for t in row if t >= 0}:
            value, r = logits[s, token], repetition[s]
            value = value / r if value > 0 else value * r
            times = answer.count(token)
            value = value - times * frequency[s]
            result[s, token] = value - presence[s] if times else value
    return result


def _inputs(dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator) -> dict[str, Any]:
    """Histories full of repeated tokens, padded at the end, with prompts of every length."""
    del dtype
    n, history, vocab = dims["seqs"], dims["history"], dims["vocab"]
    several = max(1, min(vocab, history // 2))
    tokens = torch.randint(0, several, (n, history), generator=rng)
    tokens = tokens * (vocab // several)
    lengths = torch.randint(0, history + 1, (n, 1), generator=rng)
    tokens = tokens.masked_fill(torch.arange(history) >= lengths, -1)
    return {
        "tokens": tokens.int(),
        "prompt_lens": torch.randint(0, history + 1, (n,), generator=rng).int(),
        "repetition": torch.tensor([1.0, 1.3, 0.8])[torch.arange(n) % 3],
        "presence": torch.rand(n, generator=rng) - 0.25,
        "frequency": torch.rand(n, generator=rng) - 0.25,
    }


@operator(
    shapes={
        "logits": "seqs vocab",
        "tokens": "seqs history",
        "prompt_lens": "seqs",
        "repetition": "seqs",
        "presence": "seqs",
        "frequency": "seqs",
    },
    dtypes={
        "tokens": "int32",
        "prompt_lens": "int32",
        "repetition": "float32",
        "presence": "float32",
        "frequency": "float32",
    },
    returns=[("seqs vocab", "logits")],
    inplace={"logits": 0},
    cases=Cases(
        sizes=(
            {"seqs": 5, "vocab": 101, "history": 33},
            {"seqs": 1, "vocab": 40_001, "history": 7},
            {"seqs": 2, "vocab": 3, "history": 1},
            {"seqs": 3, "vocab": 17, "history": 0},
            {"seqs": 0, "vocab": 7, "history": 4},
        ),
        inputs=_inputs,
    ),
    oracle=_oracle,
    properties=("deterministic", "batch_invariant"),
)
def penalize_logits(  # one argument a penalty
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Lowers the logits of tokens that a sequence already has.

    ``logits`` is ``[seqs, vocab]``, ``tokens`` ``[seqs, history]`` the prompt and then the answer
    so far, with entries < 0 anywhere as padding; the rest is ``[seqs]``. First ``repetition``
    (Keskar et al. 2019, arXiv:1909.05858) divides a positive logit of any token of the row and
    multiplies another one; 1 changes nothing. Then, of the tokens after the first
    ``prompt_lens`` entries, ``frequency`` is subtracted once for each time and ``presence`` once
    (OpenAI's definition). Computed in at least float32, rounded once.

    Raises:
        DomainError: where the numbers lie on the CPU: ``repetition`` <= 0, or a token that is
            not in the vocabulary.
    """
    vocab = logits.shape[-1]
    within("repetition", repetition, repetition > 0, "a positive number; 1 changes nothing")
    within("tokens", tokens, tokens < vocab, f"ids below {vocab}, and -1 as padding")
    real = tokens >= 0
    ids = tokens.clamp_min(0).long()
    place = torch.arange(tokens.shape[-1], device=tokens.device)
    answer = real & (place >= prompt_lens.unsqueeze(-1))
    wide = up(logits)
    none = torch.zeros_like(wide)
    seen = none.scatter_add(-1, ids, real.to(wide.dtype)) > 0
    times = none.scatter_add(-1, ids, answer.to(wide.dtype))
    r, once, each = (t.to(wide.dtype).unsqueeze(-1) for t in (repetition, presence, frequency))
    repeated = torch.where(wide > 0, wide / r, wide * r)
    wide = torch.where(seen, repeated, wide)
    lowered = wide - times * each - once
    return torch.where(times > 0, lowered, wide).to(logits.dtype)
