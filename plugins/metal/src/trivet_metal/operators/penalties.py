"""penalize_logits: counts of what each row has, then a pass over the logits of those tokens."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, implements
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package

COUNT: Final = Package(
    "penalties.metal",
    "count_tokens",
    (
        "tokens: in int*", "prompt_lens: in int*", "counts: into int*", "history: int32",
        "vocab: int32",
    ),
)  # fmt: skip


def _penalised(out: str) -> tuple[str, ...]:
    penalties = "repetition: in float*", "presence: in float*", "frequency: in float*"
    rest = "row_stride: int64", "vocab: int32", "in_place: int32"
    return "counts: in int*", *penalties, "logits: in T*", f"out: {out} T*", *rest


COPY: Final = Package("penalties.metal", "penalize_{T}", _penalised("out"))
IN_PLACE: Final = Package("penalties.metal", "penalize_{T}", _penalised("into"))

_GROUP: Final = 256
_SOURCES: Final = ("../kernels/instances.h", "../kernels/penalties.metal")
_DOMAIN: Final[list[Term]] = [
    dtype("logits", *FLOATS),
    contiguous("tokens"),
    contiguous("prompt_lens"),
    contiguous("repetition"),
    contiguous("presence"),
    contiguous("frequency"),
]


def _run(
    logits: Tensor, tokens: Tensor, prompt_lens: Tensor, penalties: tuple[Tensor, ...], out: Tensor
) -> None:
    """Penalises into ``out``, which may be ``logits``: then other tokens are not touched."""
    (seqs, vocab), history = logits.shape, tokens.shape[1]
    in_place = out is logits
    if not seqs or not vocab or (in_place and not history):
        return
    if logits.stride(1) != 1 and vocab > 1:
        logits = logits.contiguous()
    counts = torch.zeros((seqs, vocab), dtype=torch.int32, device=logits.device)
    if history:
        COUNT.at()(
            tokens, prompt_lens, counts, history, vocab,
            threads=(history, seqs), group=(min(_GROUP, history), 1),
        )  # fmt: skip
    kernel = (IN_PLACE if in_place else COPY).at(T=logits.dtype)
    kernel(
        counts, *penalties, logits, out, logits.stride(0), vocab, in_place,
        threads=(vocab, seqs), group=(min(_GROUP, vocab), 1),
    )  # fmt: skip


@implements(
    "penalize_logits@1",
    name="metal",
    domain=_DOMAIN,
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    _run(logits, tokens, prompt_lens, (repetition, presence, frequency), out)
    return out


@implements(
    "penalize_logits_@1",
    name="metal",
    domain=[*_DOMAIN, contiguous("logits")],
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    _run(logits, tokens, prompt_lens, (repetition, presence, frequency), logits)


@implements(
    "penalize_logits_out@1",
    name="metal",
    domain=[*_DOMAIN, contiguous("out")],
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    _run(logits, tokens, prompt_lens, (repetition, presence, frequency), out)
