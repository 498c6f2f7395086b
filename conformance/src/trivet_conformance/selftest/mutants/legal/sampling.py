"""Another way to the same draws: accepted by every family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.philox import philox, words
from trivet.catalogue.sampling import sample_token_part
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

LOG2_E = 1.4426950408889634


@implements("sample_token_part@1", name="logarithms_to_base_two")
def logarithms_to_base_two(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scores in powers of two, turned back at the end."""
    sampled = temperature is not None and seed is not None and position is not None
    if not sampled or not logits.shape[0]:
        score, best = sample_token_part.reference(logits, first)
        return score, best
    assert temperature is not None  # noqa: S101 - for the type checker
    assert seed is not None  # noqa: S101
    assert position is not None  # noqa: S101
    ids = torch.arange(first, first + logits.shape[-1])
    low, high = words(position.unsqueeze(-1))
    four = philox((ids // 4, torch.zeros_like(low), low, high), words(seed.unsqueeze(-1)))
    bits = torch.stack(four, -1).gather(-1, (ids % 4).expand_as(four[0]).unsqueeze(-1))
    u = ((bits.squeeze(-1) >> 9).float() + 0.5) * 2.0**-23
    wide = logits.float()
    greedy = ((temperature == 0) | ~wide.amax(-1).isfinite()).unsqueeze(-1)
    heat = temperature.where(temperature != 0, 1.0).unsqueeze(-1)
    noise = (u.log2() / -LOG2_E).log2()
    score = torch.where(greedy, wide, (wide / heat * LOG2_E - noise) / LOG2_E)
    best = ((score == score.amax(-1, keepdim=True)) | score.isnan()).to(torch.uint8).argmax(-1)
    return score.gather(-1, best.unsqueeze(-1)).squeeze(-1), best + first


VARIANTS = variants("", (logarithms_to_base_two,))
