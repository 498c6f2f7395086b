"""Choices and penalties that look plausible: other noise, limits off by one, padding counted."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.penalties import penalize_logits
from trivet.catalogue.sampling import sample_token, sample_token_part
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import Variant, variants

LARGE = 32
"""Sequences of a batch that is split in another way."""


@implements("sample_token@1", name="seed_ignored")
def seed_ignored(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """One stream of random numbers for everyone."""
    if seed is not None:
        seed = torch.zeros_like(seed)
    rest = (temperature, top_k, top_p, min_p, seed, position)
    return torch.as_tensor(sample_token.reference(logits, *rest))


@implements("sample_token@1", name="temperature_ignored")
def temperature_ignored(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Samples, but always at 1."""
    if temperature is not None:
        temperature = temperature.clamp_max(1.0).ceil()
    rest = (temperature, top_k, top_p, min_p, seed, position)
    return torch.as_tensor(sample_token.reference(logits, *rest))


@implements("sample_token@1", name="top_k_off_by_one")
def top_k_off_by_one(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Keeps what equals the next threshold."""
    if top_k is not None:
        top_k = (top_k + 1).where(top_k > 0, top_k)
    rest = (temperature, top_k, top_p, min_p, seed, position)
    return torch.as_tensor(sample_token.reference(logits, *rest))


@implements("sample_token@1", name="top_p_keeps_one_too_few")
def top_p_keeps_one_too_few(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Drops the token that crosses the limit."""
    if top_p is not None and temperature is not None and logits.shape[-1] > 1:
        heat = temperature.where(temperature != 0, 1.0).unsqueeze(-1)
        ordered = logits.float().sort(-1, descending=True).values
        if top_k is not None:
            k = top_k.unsqueeze(-1)
            out = (torch.arange(logits.shape[-1]) >= k) & (k > 0)
            ordered = ordered.masked_fill(out, -torch.inf)
        count = ((ordered / heat).softmax(-1).cumsum(-1) < top_p.unsqueeze(-1)).sum(-1)
        top_k = count.clamp_min(1).int().where(top_p < 1, 0 if top_k is None else top_k)
        top_p = torch.ones_like(top_p)
    rest = (temperature, top_k, top_p, min_p, seed, position)
    return torch.as_tensor(sample_token.reference(logits, *rest))


@implements("sample_token@1", name="noise_keyed_by_row")
def noise_keyed_by_row(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """The number of the row stands where the seed belongs."""
    if seed is not None:
        seed = torch.arange(seed.shape[0], device=seed.device)
    rest = (temperature, top_k, top_p, min_p, seed, position)
    return torch.as_tensor(sample_token.reference(logits, *rest))


@implements("sample_token@1", name="greedy_for_sampled")
def greedy_for_sampled(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """The likeliest token, always."""
    del temperature, top_k, top_p, min_p, seed, position
    return torch.as_tensor(sample_token.reference(logits))


@implements(
    "sample_token_part@1", name="small_batches_drawn_wide", deterministic=True, batch_invariant=True
)
def small_batches_drawn_wide(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Takes the logarithms of a small batch in float64 and of a large one in float32."""
    wide = logits.double() if logits.shape[0] < LARGE else logits
    score, best = sample_token_part.reference(wide, first, temperature, seed, position)
    return score, best


@implements("penalize_logits@1", name="padding_counted")
def padding_counted(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Padding becomes token 0."""
    tokens = tokens.clamp_min(0)
    penalties = (repetition, presence, frequency)
    return torch.as_tensor(penalize_logits.reference(logits, tokens, prompt_lens, *penalties))


@implements("penalize_logits@1", name="penalty_over_the_prompt")
def penalty_over_the_prompt(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Frequency and presence count the prompt, too."""
    prompt_lens = torch.zeros_like(prompt_lens)
    penalties = (repetition, presence, frequency)
    return torch.as_tensor(penalize_logits.reference(logits, tokens, prompt_lens, *penalties))


VARIANTS: tuple[Variant, ...] = (
    *variants(
        "value",
        (
            seed_ignored,
            temperature_ignored,
            top_k_off_by_one,
            top_p_keeps_one_too_few,
            noise_keyed_by_row,
            greedy_for_sampled,
            padding_counted,
            penalty_over_the_prompt,
        ),
    ),
    *variants("metamorphic", (small_batches_drawn_wide,)),
)
