"""sample_token, sample_token_part and penalize_logits: one pass over a row, noise included."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, implements, present
from trivet.errors import DomainError
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, sources

_SOURCES: Final = sources("philox.h", "sampling.h", "sampling_op.h")
_sample = op("sample_token")
_penalize = op("penalize_logits")
_penalize_inplace = op("penalize_logits_")

_LOGITS: Final[list[Term]] = [dtype("logits", *FLOATS)]
_SAMPLED: Final[list[Term]] = [
    *_LOGITS,
    present("temperature"),
    present("seed"),
    present("position"),
]
_FLOATS: Final = torch.empty(0)
_INTS: Final = torch.empty(0, dtype=torch.int32)
_LONGS: Final = torch.empty(0, dtype=torch.int64)


def _given(t: Tensor | None, nothing: Tensor) -> Tensor:
    return nothing if t is None else t


@implements(
    "sample_token@1",
    name="vec",
    domain=_SAMPLED,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def sample_token(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Draws a token a row: limits by partial selection, then noise where it can matter."""
    if temperature is None or seed is None or position is None:
        msg = "sample_token: temperature, seed or position is absent"
        raise DomainError(msg, fix="pass all three, or bind the operator for greedy choices")
    ids = torch.empty(logits.shape[:-1], dtype=torch.int64)
    try:
        _sample(
            logits,
            0,
            temperature,
            _given(top_k, _INTS),
            _given(top_p, _FLOATS),
            _given(min_p, _FLOATS),
            seed,
            position,
            ids,
            _FLOATS,
        )
    except RuntimeError as error:
        refuse(error)
    return ids


@implements(
    "sample_token_part@1",
    name="vec",
    domain=_LOGITS,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def sample_token_part(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Finds the best candidate of a part in one pass."""
    scores = torch.empty(logits.shape[:-1])
    ids = torch.empty(logits.shape[:-1], dtype=torch.int64)
    heat = _given(temperature, _FLOATS)
    keys = _given(seed, _LONGS), _given(position, _LONGS)
    try:
        _sample(logits, first, heat, _INTS, _FLOATS, _FLOATS, *keys, ids, scores)
    except RuntimeError as error:
        refuse(error)
    return scores, ids


@implements(
    "penalize_logits@1",
    name="vec",
    domain=_LOGITS,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def penalize_logits(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Copies the logits and changes those of the tokens that a row has."""
    out = torch.empty(logits.shape, dtype=logits.dtype)
    penalties = (repetition, presence, frequency)
    try:
        _penalize(logits, tokens, prompt_lens, *penalties, out)
    except RuntimeError as error:
        refuse(error)
    return out


@implements(
    "penalize_logits_@1",
    name="vec",
    domain=[*_LOGITS, contiguous("logits")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def penalize_logits_(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Changes the logits of the tokens that a row has, and touches no others."""
    try:
        _penalize_inplace(logits, tokens, prompt_lens, repetition, presence, frequency)
    except RuntimeError as error:
        refuse(error)


@implements(
    "penalize_logits_out@1",
    name="vec",
    domain=[*_LOGITS, contiguous("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def penalize_logits_out(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
    *,
    out: Tensor,
) -> None:
    """Copies the logits into ``out`` and changes those of the tokens that a row has."""
    try:
        _penalize(logits, tokens, prompt_lens, repetition, presence, frequency, out)
    except RuntimeError as error:
        refuse(error)
