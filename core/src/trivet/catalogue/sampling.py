"""Choosing the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from trivet.catalogue._choices import within
from trivet.catalogue._numerics import up
from trivet.catalogue._sampling_oracle import part_oracle, part_scores, scores, token_oracle
from trivet.catalogue.philox import gumbel
from trivet.contracts import Budget, Cases, operator
from trivet.contracts.cases import Relation
from trivet.errors import DomainError

SAMPLING: Final = {
    "temperature": "seqs",
    "top_k": "seqs",
    "top_p": "seqs",
    "min_p": "seqs",
    "seed": "seqs",
    "position": "seqs",
}
_DTYPES: Final = {
    "temperature": "float32",
    "top_k": "int32",
    "top_p": "float32",
    "min_p": "float32",
    "seed": "int64",
    "position": "int64",
}


def _some(values: list[float], count: int, rng: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(0, len(values), (count,), generator=rng)]


def _inputs(dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator) -> dict[str, Any]:
    """Rows of every kind: greedy, unrestricted, and cut in one or several ways."""
    del dtype
    n = dims["seqs"]
    made: dict[str, Any] = {"temperature": _some([0.0, 0.6, 1.0, 1.0, 1.7], n, rng)}
    made["top_k"] = _some([0, 0, 1, 2, 5, 40], n, rng).int()
    made["top_p"] = _some([1.0, 1.0, 0.3, 0.7, 0.95], n, rng)
    made["min_p"] = _some([0.0, 0.0, 0.05, 0.4], n, rng)
    whole = torch.iinfo(torch.int64)
    made["seed"] = torch.randint(whole.min, whole.max, (n,), generator=rng)
    made["position"] = torch.randint(0, 1 << 40, (n,), generator=rng)
    return made


def _part_inputs(
    dims: Mapping[str, int], dtype: torch.dtype, rng: torch.Generator
) -> dict[str, Any]:
    made = _inputs(dims, dtype, rng)
    first = int(torch.randint(0, 100_000, (1,), generator=rng))
    return {"first": first} | {n: made[n] for n in ("temperature", "seed", "position")}


def _half(t: Tensor) -> Tensor:
    return t[t.shape[0] // 2 :].contiguous()


def _second_half(given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: _half(v) if isinstance(v, Tensor) else v for n, v in given.items()}


def _half_of_results(results: list[Tensor], given: Mapping[str, Any]) -> list[Tensor]:
    del given
    return [_half(r) for r in results]


def _turned(given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.flip(0) if isinstance(v, Tensor) else v for n, v in given.items()}


def _turned_results(results: list[Tensor], given: Mapping[str, Any]) -> list[Tensor]:
    del given
    return [r.flip(0) for r in results]


RELATIONS: Final = (
    Relation("second half alone", _second_half, _half_of_results),
    Relation("sequences in reverse", _turned, _turned_results),
)
"""A sequence's choice does not depend on the others of its batch."""


def _checked(
    temperature: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seed: Tensor | None,
    position: Tensor | None,
) -> None:
    """Refuses a call that says how to sample but not with what, and numbers without meaning."""
    if temperature is None:
        return
    for name, value in (("seed", seed), ("position", position)):
        if value is None:
            msg = f"temperature is given, {name} is not"
            raise DomainError(msg, fix=f"pass {name}, int64 [seqs], or no temperature: greedy")
    finite = (temperature >= 0) & temperature.isfinite()
    within("temperature", temperature, finite, "0 for greedy or a positive, finite number")
    if top_p is not None:
        within("top_p", top_p, (top_p > 0) & (top_p <= 1), "a number in (0, 1]; 1 keeps all")
    if min_p is not None:
        within("min_p", min_p, (min_p >= 0) & (min_p <= 1), "a number in [0, 1]; 0 keeps all")


def _first_of_the_largest(values: Tensor) -> Tensor:
    """Lowest index of the largest, or of a NaN; argmax alone leaves ties open."""
    top = values.amax(-1, keepdim=True)
    hit = (values == top) | values.isnan()
    return hit.to(torch.uint8).argmax(-1)


def _kept(
    logits: Tensor,
    heat: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
) -> Tensor:
    """Which tokens the limits of each row keep; ``heat`` is the temperature, ``[seqs, 1]``."""
    ordered, order = torch.sort(logits, stable=True, dim=-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    keep = torch.ones_like(logits, dtype=torch.bool)
    if top_k is not None:
        k = top_k.unsqueeze(-1)
        keep &= (rank < k) | (k <= 0)
    weight = ((ordered - ordered[..., :1]) / heat).exp()
    if top_p is not None:
        mass = weight.masked_fill(~keep, 0.0)
        before = mass.cumsum(-1) - mass
        p = top_p.unsqueeze(-1)
        keep &= (before < p * mass.sum(-1, keepdim=True)) | (p >= 1)
    if min_p is not None:
        keep &= weight >= min_p.unsqueeze(-1)
    keep |= rank == 0
    return torch.zeros_like(keep).scatter(-1, order, keep)


@operator(
    shapes={"logits": "seqs vocab", **SAMPLING},
    dtypes=_DTYPES,
    returns=[("seqs", "int64")],
    moved=[("seqs vocab", "logits"), ("seqs", "int64")],
    cases=Cases(
        sizes=(
            {"seqs": 48, "vocab": 101},
            {"seqs": 1, "vocab": 70_001},
            {"seqs": 2, "vocab": 1},
            {"seqs": 0, "vocab": 7},
        ),
        inputs=_inputs,
        relations=RELATIONS,
    ),
    budget=Budget("choice", scores=scores),
    oracle=token_oracle,
    properties=("deterministic", "batch_invariant"),
)
def sample_token(  # one argument a rule
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Chooses each sequence's next token id (int64).

    ``logits`` is ``[seqs, vocab]``, everything else ``[seqs]``. Without ``temperature``, and
    where it is 0, the choice is greedy: the largest logit, ties go to the lowest id. Otherwise
    tokens are kept in order of (logit descending, id ascending): ``top_k`` > 0 keeps that many;
    ``top_p`` < 1 (nucleus sampling, Holtzman et al. 2020, arXiv:1904.09751) keeps the shortest
    prefix whose share of the softmax over those reaches it; ``min_p`` > 0 (Nguyen et al. 2024,
    arXiv:2407.01082) keeps what has at least that share of the likeliest token's probability. One
    token is always kept. Of the kept, the largest ``logit / temperature - log(-log(u))`` is chosen
    (Gumbel-max, arXiv:1611.01144): a draw from their softmax. ``u`` comes from
    Philox4x32-10 and depends on (``seed``, ``position``, id) alone, so that neither the batch nor
    a split of the vocabulary changes a choice.

    A row whose largest logit is not finite is chosen greedily: the lowest id of a NaN, so that a
    broken model is seen rather than hidden, else the lowest id of +inf; a row of -inf gives 0.

    Raises:
        DomainError: ``temperature`` without ``seed`` or ``position``; or, where the numbers lie
            on the CPU, a negative or infinite temperature, ``top_p`` outside (0, 1], ``min_p``
            outside [0, 1]. ``top_k`` <= 0 and limits without ``temperature`` limit nothing.
    """
    _checked(temperature, top_p, min_p, seed, position)
    if temperature is None or seed is None or position is None or not logits.shape[0]:
        return _first_of_the_largest(logits)
    wide = up(logits)
    greedy = (temperature == 0) | ~wide.amax(-1).isfinite()
    heat = temperature.to(wide.dtype).where(temperature != 0, 1.0).unsqueeze(-1)
    score = wide / heat + gumbel(seed, position, 0, logits.shape[-1], wide.dtype)
    if not (top_k is None and top_p is None and min_p is None):
        score = score.masked_fill(~_kept(wide, heat, top_k, top_p, min_p), -torch.inf)
    return _first_of_the_largest(torch.where(greedy.unsqueeze(-1), wide, score))


@operator(
    shapes={
        "logits": "seqs part",
        "temperature": "seqs",
        "seed": "seqs",
        "position": "seqs",
    },
    dtypes={n: _DTYPES[n] for n in ("temperature", "seed", "position")},
    returns=[("seqs", "float32"), ("seqs", "int64")],
    moved=[("seqs part", "logits"), ("seqs", "float32"), ("seqs", "int64")],
    cases=Cases(
        sizes=(
            {"seqs": 48, "part": 101},
            {"seqs": 1, "part": 40_001},
            {"seqs": 2, "part": 1},
            {"seqs": 0, "part": 7},
        ),
        inputs=_part_inputs,
        relations=RELATIONS,
    ),
    budget=Budget("choice", scores=part_scores),
    oracle=part_oracle,
    properties=("deterministic", "batch_invariant"),
)
def sample_token_part(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Finds the best candidate of one part of a split vocabulary: its score and its id.

    ``logits`` is ``[seqs, part]``, those of the ids ``first ... first + part - 1``. The score
    (float32) is the logit where the choice is greedy and ``logit / temperature - log(-log(u))``
    elsewhere, with the noise of ``sample_token``; the id (int64) is one of the whole vocabulary.
    The candidate of all parts with the largest score, a NaN before all others, ties to the
    lowest id, is what ``sample_token`` chooses from the whole row.

    Raises:
        DomainError: as ``sample_token``; ``first`` < 0.
    """
    _checked(temperature, None, None, seed, position)
    if first < 0:
        msg = f"first={first}"
        raise DomainError(msg, fix="pass the id of the part's first token")
    score = wide = up(logits)
    if temperature is not None and seed is not None and position is not None and logits.shape[0]:
        greedy = (temperature == 0) | ~wide.amax(-1).isfinite()
        heat = temperature.to(wide.dtype).where(temperature != 0, 1.0).unsqueeze(-1)
        noisy = wide / heat + gumbel(seed, position, first, logits.shape[-1], wide.dtype)
        score = torch.where(greedy.unsqueeze(-1), wide, noisy)
    chosen = _first_of_the_largest(score)
    return score.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).float(), chosen + first
