"""Packs and schedules that do not belong to their weight or step: killed by the staged family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trivet.catalogue.attention import paged_attention
from trivet.catalogue.linear import linear
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

_packs: dict[object, Tensor] = {}
_lengths: dict[object, Tensor] = {}
_Facts = Mapping[str, Any]


def _cached_by_shape(facts: _Facts, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    del facts, bias
    return [_packs.setdefault((weight.shape, weight.dtype), weight.clone())]


def _views(facts: _Facts, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    del facts, bias
    return [weight[:]]


def _square_transposed(facts: _Facts, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    del facts, bias
    return [(weight.T if weight.shape[0] == weight.shape[1] else weight).clone()]


def _written(facts: _Facts, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    del facts, bias
    pack = weight.clone()
    weight.zero_()
    return [pack]


@implements("linear_packed@1", name="pack_cached_by_shape", prepare=_cached_by_shape)
def pack_cached_by_shape(  # noqa: D103
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, packed[0][:out_features], bias)
    return y


@implements("linear_packed@1", name="pack_is_a_view", prepare=_views)
def pack_is_a_view(  # noqa: D103
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, packed[0][:out_features], bias)
    return y


@implements("linear_packed@1", name="square_pack_transposed", prepare=_square_transposed)
def square_pack_transposed(  # noqa: D103
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, packed[0][:out_features], bias)
    return y


@implements("linear_packed@1", name="prepare_writes_the_weight", prepare=_written)
def prepare_writes_the_weight(  # noqa: D103
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, packed[0][:out_features], bias)
    return y


def _first_lengths(
    facts: _Facts, seq_lens: Tensor, out: list[Tensor] | None = None
) -> list[Tensor]:
    """Keeps the lengths of the first step of as many sequences."""
    del facts, out
    return [_lengths.setdefault(seq_lens.shape, seq_lens.clone())]


@implements("paged_attention@1", name="schedule_of_the_first_step", prepare_step=_first_lengths)
def schedule_of_the_first_step(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    lengths = schedule[0] if schedule else seq_lens
    batch = (q, k_cache, v_cache, block_table, query_start, lengths)
    sizes = (max_query_len, max_seq_len, scale)
    y: Tensor = paged_attention.reference(*batch, *sizes, [], window, soft_cap, layout)
    return y


VARIANTS = variants(
    "staged",
    (
        pack_cached_by_shape,
        pack_is_a_view,
        square_pack_transposed,
        prepare_writes_the_weight,
        schedule_of_the_first_step,
    ),
)
