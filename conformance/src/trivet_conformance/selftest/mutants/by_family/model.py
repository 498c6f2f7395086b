"""Right at the sizes that tests like, wrong at those of models: killed by the model family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.kv_cache import kv_cache_write
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants

ROW = 2048
"""Elements of a row that one block of threads has room for."""


@implements("rms_norm@1", name="sum_cut_at_2048")
def sum_cut_at_2048(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = x.to(torch.promote_types(x.dtype, torch.float32))
    seen = f[..., : min(variance_size or ROW, ROW)]
    f = f * torch.rsqrt(seen.pow(2).mean(-1, keepdim=True) + eps)
    if weight_in_float32:
        return (f * (weight.to(f.dtype) + weight_offset)).to(x.dtype)
    return (f.to(x.dtype) * (weight + weight_offset)).to(x.dtype)


@implements("silu_and_mul@1", name="columns_of_one_grid_only")
def columns_of_one_grid_only(x: Tensor) -> Tensor:
    """A grid of 8192 threads without a loop."""
    y: Tensor = silu_and_mul.reference(x)
    y[..., 8192:] = 0
    return y


@implements("kv_cache_write@1", name="one_block_of_threads_a_token")
def one_block_of_threads_a_token(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Copies the first 512 elements of a token."""
    heads = max(1, 512 // max(k.shape[-1], 1))
    rest = k_cache[:, :, heads:].clone(), v_cache[:, :, heads:].clone()
    kv_cache_write.reference(k, v, k_cache, v_cache, slots, layout)
    for cache, old in zip((k_cache, v_cache), rest, strict=True):
        cache[:, :, heads:] = old


VARIANTS = variants(
    "model",
    (sum_cut_at_2048, columns_of_one_grid_only, one_block_of_threads_a_token),
)
