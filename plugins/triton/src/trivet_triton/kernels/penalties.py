"""penalize_logits: one program goes through a row's history, and touches only the tokens there.

Every entry of the history writes its place at its token, in memory that nobody cleared; whichever
write was last, one entry of each token finds its own place again, and changes the logit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, implements
from trivet.kernels.triton import Kernel, Variant
from trivet_triton.hardware import device_at
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import FLOATS


@triton.jit
def _penalize(
    logits: tl.tensor,
    tokens: tl.tensor,
    prompt_lens: tl.tensor,
    repetition: tl.tensor,
    presence: tl.tensor,
    frequency: tl.tensor,
    space: tl.tensor,
    row_stride: tl.tensor,
    vocab: tl.tensor,
    history: tl.tensor,
    PIECE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    tokens += row * history
    at_token = space + row * (vocab + history)
    chosen = at_token + vocab
    prompt = tl.load(prompt_lens + row)
    for first in range(0, history, PIECE):
        place = first + tl.arange(0, PIECE)
        token = tl.load(tokens + place, mask=place < history, other=-1)
        tl.store(at_token + token, -1 - place, mask=(token >= 0) & (token < vocab))
    tl.debug_barrier()
    for first in range(0, history, PIECE):
        place = first + tl.arange(0, PIECE)
        token = tl.load(tokens + place, mask=place < history, other=-1)
        there = (token >= 0) & (token < vocab)
        found = tl.load(at_token + token, mask=there, other=0, cache_modifier=".cg")
        own = found == -1 - place
        tl.store(chosen + place, own.to(tl.int32), mask=place < history)
        # from here on it is a count; no other entry takes 0 or more for its place
        tl.store(at_token + token, place * 0, mask=own)
    tl.debug_barrier()
    for first in range(0, history, PIECE):
        place = first + tl.arange(0, PIECE)
        token = tl.load(tokens + place, mask=place < history, other=-1)
        there = (token >= 0) & (token < vocab) & (place >= prompt)
        tl.atomic_add(at_token + token, place * 0 + 1, mask=there, sem="relaxed")
    tl.debug_barrier()
    r = tl.load(repetition + row)
    each, once = tl.load(frequency + row), tl.load(presence + row)
    for first in range(0, history, PIECE):
        place = first + tl.arange(0, PIECE)
        token = tl.load(tokens + place, mask=place < history, other=-1)
        own = tl.load(chosen + place, mask=place < history, other=0) > 0
        times = tl.load(at_token + token, mask=own, other=0, cache_modifier=".cg")
        x = tl.load(logits + token, mask=own, other=0.0).to(tl.float32)
        x = tl.where(x > 0, tl.div_rn(x, r + tl.zeros([PIECE], tl.float32)), x * r)
        x = tl.where(times > 0, x - times.to(tl.float32) * each - once, x)
        tl.store(logits + token, x.to(logits.dtype.element_ty), mask=own)


_KERNEL: Final = Kernel(
    _penalize,
    settle=overlap,
    logits="*T",
    tokens="*i32",
    prompt_lens="*i32",
    repetition="*fp32",
    presence="*fp32",
    frequency="*fp32",
    space="*i32",
    row_stride="i64",
    vocab="i32",
    history="i32",
)
_PIECE: Final = 1024


def _variant(element: torch.dtype) -> Variant:
    return _KERNEL.variant({"T": element}, {"PIECE": _PIECE}, num_warps=8)


@cache
def _launch(index: int, element: torch.dtype) -> Any:
    return _variant(element).on(device_at(index))


def _run(
    logits: Tensor,
    tokens: Tensor,
    prompt_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Changes the logits of the tokens that a row has, and touches no others."""
    (seqs, vocab), history = logits.shape, tokens.shape[1]
    if not seqs or not history:
        return
    _launch(logits.get_device(), logits.dtype)(
        seqs,
        1,
        1,
        logits,
        tokens,
        prompt_lens,
        repetition,
        presence,
        frequency,
        tokens.new_empty(seqs * (vocab + history)),
        logits.stride(0),
        vocab,
        history,
    )


_DOMAIN: Final[list[Term]] = [
    dtype("logits", *FLOATS),
    contiguous("logits"),
    contiguous("tokens"),
    contiguous("prompt_lens"),
    contiguous("repetition"),
    contiguous("presence"),
    contiguous("frequency"),
]


@implements(
    "penalize_logits@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
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
    out = logits.clone()
    _run(out, tokens, prompt_lens, repetition, presence, frequency)
    return out


@implements(
    "penalize_logits_@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
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
    _run(logits, tokens, prompt_lens, repetition, presence, frequency)


@implements(
    "penalize_logits_out@1",
    name="triton",
    domain=[*_DOMAIN, contiguous("out")],
    graph_safe=True,
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
    out.copy_(logits)
    _run(out, tokens, prompt_lens, repetition, presence, frequency)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time; they are the same for every architecture."""
    del arch
    for element in (torch.bfloat16, torch.float32):
        yield f"penalties/{element}".replace("torch.", ""), _variant(element)
