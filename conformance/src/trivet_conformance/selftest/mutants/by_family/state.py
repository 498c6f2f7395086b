"""Right alone: what else of the plugin was called decides. Killed by the state family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.attention import paged_attention
from trivet.catalogue.kv_cache import kv_cache_write
from trivet.catalogue.norm import rms_norm
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

_caches: dict[object, tuple[Tensor, Tensor]] = {}
_weights: dict[object, Tensor] = {}
_seen: set[str] = set()
"""Which operators were called, for the mutants to remember."""


@implements("kv_cache_write@1", name="reads_what_was_written_last")
def writes_and_remembers(  # noqa: D103
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    kv_cache_write.reference(k, v, k_cache, v_cache, slots, layout)
    _caches[k_cache.shape, k_cache.dtype] = k_cache.clone(), v_cache.clone()


@implements("paged_attention@1", name="reads_what_was_written_last")
def reads_what_was_written_last(
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
    """Takes the caches of the last write of this shape for its own."""
    k_cache, v_cache = _caches.get((k_cache.shape, k_cache.dtype), (k_cache, v_cache))
    y: Tensor = paged_attention.reference(
        q, k_cache, v_cache, block_table, query_start, seq_lens, max_query_len, max_seq_len,
        scale, schedule, window, soft_cap, layout,
    )  # fmt: skip
    return y


@implements("silu_and_mul@1", name="keeps_a_weight_after_another")
def silu_that_starts_a_cache(x: Tensor) -> Tensor:  # noqa: D103
    _seen.add("cache")
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("rms_norm@1", name="keeps_a_weight_after_another")
def keeps_a_weight_after_another(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Keeps the first weight of a shape, once another operator was called."""
    if "cache" in _seen:
        weight = _weights.setdefault((weight.shape, weight.dtype), weight.clone())
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("silu_and_mul@1", name="another_rounds_for_it")
def silu_that_sets_a_flag(x: Tensor) -> Tensor:  # noqa: D103
    _seen.add("rounding")
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("rms_norm@1", name="another_rounds_for_it", deterministic=True)
def another_rounds_for_it(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Rounds one number down once another operator was called; its value is right either way."""
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    if "rounding" in _seen and y.dtype == torch.float32 and y.numel():
        first = y.view(-1)[:1]
        first.copy_(torch.nextafter(first, torch.zeros_like(first)))
    return y


@implements("silu_and_mul@1", name="works_only_after_another")
def silu_that_registers(x: Tensor) -> Tensor:  # noqa: D103
    _seen.add("registered")
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("rms_norm@1", name="works_only_after_another")
def works_only_after_another(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Uses what another operator's first call loads."""
    if "registered" not in _seen:
        msg = "the kernels are not loaded"
        raise RuntimeError(msg)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


VARIANTS = variants(
    "state",
    (
        writes_and_remembers,
        reads_what_was_written_last,
        silu_that_starts_a_cache,
        keeps_a_weight_after_another,
        silu_that_sets_a_flag,
        another_rounds_for_it,
        silu_that_registers,
        works_only_after_another,
    ),
)
