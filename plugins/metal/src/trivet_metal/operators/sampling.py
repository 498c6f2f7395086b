"""sample_token and sample_token_part: no sort, one launch under limits, one or two without."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, implements
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import SIMD, group_for

_SAMPLED: Final = ("seed: in long*", "position: in long*")
_COUNTS: Final = ("row_stride: int64", "first: int64", "vocab: int32", "blocks: int32")
_FLAGS: Final = ("sampled: int32", "scored: int32")


def _scanned(parts: str, choice: str) -> tuple[str, ...]:
    results = f"parts: {parts} int*", f"ids: {choice} long*", f"scores: {choice} float*"
    rows = "logits: in T*", "temperature: in float*", *_SAMPLED
    return *rows, *results, *_COUNTS, *_FLAGS


WHOLE: Final = Package("best_candidate.metal", "best_candidate_{T}", _scanned("in", "out"))
PARTS: Final = Package("best_candidate.metal", "best_candidate_{T}", _scanned("out", "in"))
JOIN: Final = Package(
    "best_candidate.metal",
    "best_of_parts",
    (
        "parts: in int*", "temperature: in float*", "ids: out long*", "scores: out float*",
        "first: int64", "count: int32", *_FLAGS,
    ),
)  # fmt: skip
LIMITED: Final = Package(
    "limited_candidate.metal",
    "limited_candidate_{T}",
    (
        "logits: in T*", "temperature: in float*", "top_k: in int*", "top_p: in float*",
        "min_p: in float*", *_SAMPLED, "ids: out long*", "row_stride: int64", "vocab: int32",
        "limits: int32",
    ),
)  # fmt: skip

_THREADS: Final = 512
"""Of a row at most: more would leave each fewer registers than 16 sums need."""

_PART: Final = 4096
"""Tokens that a threadgroup goes through before a second one is worth a launch."""

_SOURCES: Final = tuple(
    f"../kernels/{name}" for name in ("instances.h", "order.h", "best_candidate.metal")
)
_DOMAIN: Final[list[Term]] = [
    dtype("logits", *FLOATS),
    contiguous("temperature"),
    contiguous("seed"),
    contiguous("position"),
]
_Given = tuple[Tensor, Tensor, Tensor] | tuple[None, None, None]


def _given(temperature: Tensor | None, seed: Tensor | None, position: Tensor | None) -> _Given:
    """What a draw needs, or three times None for greedy choices.

    Raises:
        DomainError: there is a temperature without a seed or a position.
    """
    if temperature is None:
        return None, None, None
    if seed is None or position is None:
        msg = f"temperature is given, {'seed' if seed is None else 'position'} is not"
        raise DomainError(msg, fix="pass both, int64 [seqs], or no temperature: greedy")
    return temperature, seed, position


def _dense(logits: Tensor) -> Tensor:
    """The logits with dense rows, any distance apart."""
    return logits if logits.stride(1) == 1 or logits.shape[1] == 1 else logits.contiguous()


def _best(logits: Tensor, first: int, given: _Given, ids: Tensor, scores: Tensor | None) -> None:
    """Writes the choice of each row where nothing limits it."""
    logits, (seqs, vocab) = _dense(logits), logits.shape
    blocks = -(-(vocab + first % 4) // 4)
    parts = min(SIMD, -(-4 * blocks // _PART))
    each = -(-blocks // parts)
    parts, size = -(-blocks // each), min(_THREADS, group_for(4 * each))
    flags = given[0] is not None, scores is not None
    stride = logits.stride(0)
    kernel = (PARTS if parts > 1 else WHOLE).at(T=logits.dtype)
    space = ids.new_empty(seqs, parts, 4, dtype=torch.int32) if parts > 1 else None
    results = (space, None, None) if parts > 1 else (None, ids, scores)
    kernel(
        logits, *given, *results, stride, first, vocab, each, *flags,
        threads=(parts * size, seqs, 1), group=(size, 1, 1),
    )  # fmt: skip
    if space is not None:
        JOIN.at()(
            space, given[0], ids, scores, first, parts, *flags,
            threads=(seqs * SIMD,), group=(SIMD,),
        )  # fmt: skip


@implements(
    "sample_token@1",
    name="metal",
    domain=[*_DOMAIN, contiguous("top_k"), contiguous("top_p"), contiguous("min_p")],
    sources=[*_SOURCES, "../kernels/limited_candidate.metal"],
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
    given, limits = _given(temperature, seed, position), (top_k, top_p, min_p)
    if not ids.numel():
        return ids
    if given[0] is None or all(limit is None for limit in limits):
        _best(logits, 0, given, ids, None)
        return ids
    logits, vocab = _dense(logits), logits.shape[1]
    size = min(_THREADS, group_for(vocab))
    heat, key, place = given
    LIMITED.at(T=logits.dtype)(
        logits, heat, *limits, key, place, ids, logits.stride(0), vocab,
        sum(1 << n for n, limit in enumerate(limits) if limit is not None),
        threads=(ids.numel() * size,), group=(size,),
    )  # fmt: skip
    return ids


@implements(
    "sample_token_part@1",
    name="metal",
    domain=_DOMAIN,
    sources=_SOURCES,
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
        _best(logits, first, given, ids, scores)
    return scores, ids
