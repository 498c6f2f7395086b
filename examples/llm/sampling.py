"""How the next token is chosen: the options of a request, and a step's requests as tensors.

A token depends on its logits and options, and on noise that depends on seed, position and id of
the token alone: not on the batch, and not on what was drawn before. The logits themselves may
differ in last bits with the size of a step, where a product is not batch invariant. So a seed gives
the same text again where the steps are the same, and nearly always where they are not.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
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
    drawn = dict.fromkeys(always, "present") | {"contiguous": ["logits", *always, *limits]}
    penalized = {"contiguous": ["logits", "tokens", *PENALTIES]}
    return {
        "sample": ("sample_token", {**facts, **dict.fromkeys((*always, *limits))}),
        "sample_random": ("sample_token", {**facts, **drawn}),
        "penalize": ("penalize_logits_", {**facts, **penalized}),
    }


LIMITS = ("top_k", "top_p", "min_p")
CHOICE = ("temperature", *LIMITS, "seed", "position")
PENALTIES = ("prompt_lens", "repetition", "presence", "frequency")
COLUMNS = {
    "temperature": (torch.float32, 0),
    "top_k": (torch.int32, 0),
    "top_p": (torch.float32, 1),
    "min_p": (torch.float32, 0),
    "seed": (torch.int64, 0),
    "position": (torch.int64, 0),
    "prompt_lens": (torch.int32, 0),
    "repetition": (torch.float32, 1),
    "presence": (torch.float32, 0),
    "frequency": (torch.float32, 0),
    "history": (torch.int32, -1),
}
"""Dtype of each column of a step's rows, and what asks for nothing in it."""


def asked(pieces: Sequence[Piece], *, whole: bool = False, width: int = 0) -> dict[str, Any]:
    """What the pieces ask of the choice, on the host: column -> [pieces] or, history, [pieces, n].

    Args:
        pieces: Those that sample, in the order of the rows.
        whole: Whether a column that asks for nothing is there where another one of its kind is;
            else it is left out, and costs nothing.
        width: How many tokens a history has at least.
    """
    options = [piece.request.sampling for piece in pieces]
    found: dict[str, list[Any]] = {}
    if any(o.penalizes for o in options):
        requests = [p.request for p in pieces]
        said = [r.prompt + r.output if r.sampling.penalizes else [] for r in requests]
        width = max(width, *map(len, said))
        found["history"] = [tokens + [-1] * (width - len(tokens)) for tokens in said]
        found["prompt_lens"] = [len(r.prompt) if r.sampling.penalizes else 0 for r in requests]
        found |= {n: [getattr(o, n) for o in options] for n in PENALTIES[1:]}
    if any(o.is_random for o in options) or (whole and found):
        found["temperature"] = [o.temperature if o.is_random else 0 for o in options]
        found["top_k"] = [o.top_k for o in options]
        found["top_p"] = [max(o.top_p, _LEAST_P) for o in options]
        found["min_p"] = [o.min_p for o in options]
        found["seed"] = [o.seed for o in options]
        found["position"] = [p.start + len(p.ids) for p in pieces]
        off = [n for n in LIMITS if all(value == COLUMNS[n][1] for value in found[n])]
        found = {n: column for n, column in found.items() if whole or n not in off}
    return {n: torch.tensor(column, dtype=COLUMNS[n][0]) for n, column in found.items()}


def apply(op: Any, logits: torch.Tensor, given: Mapping[str, torch.Tensor]) -> Any:
    """The next token of each row; int64 [rows].

    Args:
        op: A step of the plan, with the functions of ``sites``.
        logits: [rows, vocab]; penalties change it in place.
        given: What is asked, as ``asked`` says it, on the device of the logits.
    """
    if "history" in given:
        op.penalize(logits, given["history"], *(given[name] for name in PENALTIES))
    if "temperature" not in given:
        return op.sample(logits)
    return op.sample_random(logits, *(given.get(name) for name in CHOICE))


def choose(op: Any, logits: torch.Tensor, pieces: Sequence[Piece]) -> Any:
    """The next token of each piece; int64 [pieces]. See ``apply`` and ``asked``."""
    return apply(op, logits, {n: c.to(logits.device) for n, c in asked(pieces).items()})
