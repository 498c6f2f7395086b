"""How the next token is chosen: the options of a request, and a step's requests as tensors.

A token depends on its logits and options, and on noise that depends on seed, position and id of
the token alone: not on the batch, and not on what was drawn before. The logits themselves may
differ in last bits with the size of a step, where a product is not batch invariant. So a seed gives
the same text again where the steps are the same, and nearly always where they are not.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from llm.schedule import Piece

_SEED_BITS = 63  # a seed is a non-negative int64
_COLDEST = 1e-5  # logits divided by less than this overflow; the likeliest token is taken
_LEAST_P = 1e-6  # the operator takes no 0; so little keeps one token, which is what 0 asks for


@dataclass(frozen=True)
class Sampling:
    """The options of one request; the defaults choose greedily.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: So many of the most likely tokens are kept; 0 keeps all.
        top_p: The fewest tokens are kept whose probabilities reach this sum; 1 keeps all.
        min_p: Tokens below this part of the largest probability are dropped; 0 drops none.
        seed: Of the random choice; drawn once when it is not given.
        repetition: Divides positive and multiplies negative logits of tokens seen; 1 is off.
        presence: Is taken from the logit of each token that was generated.
        frequency: Is taken from it as often as the token was generated.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = field(default_factory=lambda: secrets.randbits(_SEED_BITS))
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def is_random(self) -> bool:
        """Whether chance has a part in the choice."""
        return self.temperature >= _COLDEST

    @property
    def penalizes(self) -> bool:
        """Whether earlier tokens change the logits."""
        return (self.repetition, self.presence, self.frequency) != (1, 0, 0)

    @property
    def reported_seed(self) -> int | None:
        """The seed that gives the same text again; None where no seed is needed."""
        return self.seed if self.is_random else None


GREEDY = Sampling(seed=0)


def sites(act: dict[str, Any], vocab: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sites of choosing; ``act``: facts of the logits. Only what a step needs is called."""
    facts = {**act, "vocab": vocab, "seqs": "rows"}
    always, limits = ("temperature", "seed", "position"), ("top_k", "top_p", "min_p")
    return {
        "sample": ("sample_token", {**facts, **dict.fromkeys((*always, *limits))}),
        "sample_random": ("sample_token", {**facts, **dict.fromkeys(always, "present")}),
        "penalize": ("penalize_logits_", facts),
    }


def choose(op: Any, logits: torch.Tensor, pieces: Sequence[Piece]) -> Any:
    """The next token of each piece; int64 [pieces].

    Args:
        op: A step of the plan, with the functions of ``sites``.
        logits: [pieces, vocab]; penalties change it in place.
        pieces: Those that sample, in the order of the rows.
    """
    options = [piece.request.sampling for piece in pieces]
    if any(o.penalizes for o in options):
        _penalize(op, logits, pieces, options)
    if not any(o.is_random for o in options):
        return op.sample(logits)
    floats, longs = _columns(logits.device, torch.float32), _columns(logits.device, torch.int64)
    ints = _columns(logits.device, torch.int32)

    def limit(column: Any, values: list[Any], off: float) -> torch.Tensor | None:
        """A limit that no request of the step sets costs nothing."""
        return None if all(value == off for value in values) else column(values)

    return op.sample_random(
        logits,
        floats([o.temperature if o.is_random else 0 for o in options]),
        limit(ints, [o.top_k for o in options], 0),
        limit(floats, [max(o.top_p, _LEAST_P) for o in options], 1),
        limit(floats, [o.min_p for o in options], 0),
        longs([o.seed for o in options]),
        longs([p.start + len(p.ids) for p in pieces]),
    )


def _columns(device: torch.device, dtype: torch.dtype) -> Any:
    return lambda values: torch.tensor(values, dtype=dtype, device=device)


def _penalize(
    op: Any, logits: torch.Tensor, pieces: Sequence[Piece], options: list[Sampling]
) -> None:
    """Lowers what was said before; rows without penalties get an empty history."""
    histories = [
        piece.request.prompt + piece.request.output if o.penalizes else []
        for piece, o in zip(pieces, options, strict=True)
    ]
    longest = max(map(len, histories))
    ints, floats = _columns(logits.device, torch.int32), _columns(logits.device, torch.float32)
    op.penalize(
        logits,
        ints([history + [-1] * (longest - len(history)) for history in histories]),
        ints([len(p.request.prompt) if o.penalizes else 0
              for p, o in zip(pieces, options, strict=True)]),
        floats([o.repetition for o in options]),
        floats([o.presence for o in options]),
        floats([o.frequency for o in options]),
    )  # fmt: skip
