"""sample_token and sample_token_part: no sort, one launch under limits, one or two without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, implements
from trivet.errors import DomainError
from trivet.kernels.triton import Variant
from trivet_triton.kernels import best_candidate, limited_candidate
from trivet_triton.kernels.row_layout import FLOATS

_SOURCES: Final = (
    "best_candidate.py",
    "limited_candidate.py",
    "cuts.py",
    "order_and_noise.py",
    "row_layout.py",
    "../hardware.py",
)
_DOMAIN: Final[list[Term]] = [
    dtype("logits", *FLOATS),
    contiguous("temperature"),
    contiguous("seed"),
    contiguous("position"),
]


def _given(
    temperature: Tensor | None, seed: Tensor | None, position: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """What a draw needs, or None for greedy choices.

    Raises:
        DomainError: there is a temperature without a seed or a position.
    """
    if temperature is None:
        return None
    if seed is None or position is None:
        msg = f"temperature is given, {'seed' if seed is None else 'position'} is not"
        raise DomainError(msg, fix="pass both, int64 [seqs], or no temperature: greedy")
    return temperature, seed, position


def _dense(logits: Tensor) -> Tensor:
    """The logits with dense rows, any distance apart."""
    return logits if logits.stride(1) == 1 or logits.shape[1] == 1 else logits.contiguous()


@implements(
    "sample_token@1",
    name="triton",
    domain=[*_DOMAIN, contiguous("top_k"), contiguous("top_p"), contiguous("min_p")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    """Draws a token a row."""
    ids = logits.new_empty(logits.shape[0], dtype=torch.int64)
    given = _given(temperature, seed, position)
    if not ids.numel():
        return ids
    if given is None or (top_k is None and top_p is None and min_p is None):
        best_candidate.best(_dense(logits), 0, given, ids, None)
    else:
        limited_candidate.best(_dense(logits), given, (top_k, top_p, min_p), ids)
    return ids


@implements(
    "sample_token_part@1",
    name="triton",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def sample_token_part(
    logits: Tensor,
    first: int,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Finds the best candidate of a part in one pass.

    Raises:
        DomainError: ``first`` is negative.
    """
    if first < 0:
        msg = f"sample_token_part: first={first}"
        raise DomainError(msg, fix="pass the id of the part's first token")
    ids = logits.new_empty(logits.shape[0], dtype=torch.int64)
    scores = logits.new_empty(logits.shape[0], dtype=torch.float32)
    given = _given(temperature, seed, position)
    if ids.numel():
        best_candidate.best(_dense(logits), first, given, ids, scores)
    return scores, ids


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants of both kernels, for checks ahead of time."""
    yield from best_candidate.variants(arch)
    yield from limited_candidate.variants(arch)
