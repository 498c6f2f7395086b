"""Attention over dense keys: what the value family must kill, and a legal softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet_conformance.selftest.mutants.attention_loop import in_base_two
from trivet_conformance.selftest.mutants.dense_loop import Dense
from trivet_conformance.selftest.mutants.variant import Variant, variants


def _plain(scores: Tensor, hidden: Tensor) -> Tensor:
    """A softmax that divides zero by zero where nothing is seen."""
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@implements("attention@1", name="positions_aligned_at_the_start")
def positions_aligned_at_the_start(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Right where there are as many queries as keys."""
    return Dense(from_start=True)(q, k, v, mask, scale, causal, window, soft_cap)


@implements("attention@1", name="mask_ignored_for_one_head")
def mask_ignored_for_one_head(  # noqa: D103
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    return Dense(unmasked_head=True)(q, k, v, mask, scale, causal, window, soft_cap)


@implements("attention@1", name="hidden_rows_are_nan")
def hidden_rows_are_nan(  # noqa: D103
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    return Dense(softmax=_plain)(q, k, v, mask, scale, causal, window, soft_cap)


@implements("attention@1", name="mask_before_the_soft_cap")
def mask_before_the_soft_cap(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """What a mask adds is capped as well."""
    return Dense(capped_last=True)(q, k, v, mask, scale, causal, window, soft_cap)


@implements("attention@1", name="dense_window_off_by_one")
def dense_window_off_by_one(  # noqa: D103
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    return Dense(window_shift=1)(q, k, v, mask, scale, causal, window, soft_cap)


@implements("attention@1", name="dense_heads_dealt_in_turn")
def dense_heads_dealt_in_turn(  # noqa: D103
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    return Dense(interleaved=True)(q, k, v, mask, scale, causal, window, soft_cap)


@implements("attention@1", name="dense_softmax_in_base_two")
def dense_softmax_in_base_two(  # noqa: D103
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    return Dense(softmax=in_base_two)(q, k, v, mask, scale, causal, window, soft_cap)


VARIANTS: tuple[Variant, ...] = (
    *variants(
        "value",
        (
            positions_aligned_at_the_start,
            mask_ignored_for_one_head,
            hidden_rows_are_nan,
            mask_before_the_soft_cap,
            dense_window_off_by_one,
            dense_heads_dealt_in_turn,
        ),
    ),
    *variants("", (dense_softmax_in_base_two,)),
)
