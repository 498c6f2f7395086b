"""Wrong numbers: each must be killed by the value family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.kv_cache import kv_cache_write
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import rms_norm
from trivet.catalogue.rotary import rotary_embedding
from trivet.catalogue.sampling import sample_token
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.variant import variants


def _up(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _scaled(f: Tensor, x: Tensor, weight: Tensor, offset: float, in_float32: bool) -> Tensor:
    """The end of a norm, with the operator's order of roundings."""
    if in_float32:
        return (f * (_up(weight) + offset)).to(x.dtype)
    return (f.to(x.dtype) * (weight + offset)).to(x.dtype)


@implements("rms_norm@1", name="eps_outside_the_root")
def eps_outside_the_root(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = f[..., : variance_size or None]
    f = f / (seen.pow(2).mean(-1, keepdim=True).sqrt() + eps)
    return _scaled(f, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="divides_by_n_minus_one")
def divides_by_n_minus_one(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = f[..., : variance_size or None]
    n = max(seen.shape[-1] - 1, 1)
    f = f * torch.rsqrt(seen.pow(2).sum(-1, keepdim=True) / n + eps)
    return _scaled(f, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="accumulates_in_bfloat16")
def accumulates_in_bfloat16(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = f[..., : variance_size or None]
    total = seen.pow(2).to(torch.bfloat16).cumsum(-1)[..., -1:].float()
    f = f * torch.rsqrt(total / seen.shape[-1] + eps)
    return _scaled(f, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="gain_of_two_per_mille")
def gain_of_two_per_mille(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    y = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return (_up(y) * 1.002).to(x.dtype)


@implements("rms_norm@1", name="squares_overflow_in_float16")
def squares_overflow_in_float16(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = x[..., : variance_size or None].half()
    f = f * torch.rsqrt(seen.pow(2).float().mean(-1, keepdim=True) + eps)
    return _scaled(f, x, weight, weight_offset, weight_in_float32)


@implements("silu_and_mul@1", name="returns_zeros")
def returns_zeros(x: Tensor) -> Tensor:  # noqa: D103
    return x.new_zeros((*x.shape[:-1], x.shape[-1] // 2))


@implements("silu_and_mul@1", name="halves_swapped")
def halves_swapped(x: Tensor) -> Tensor:  # noqa: D103
    value, gate = _up(x).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * value).to(x.dtype)


@implements("silu_and_mul@1", name="gelu_for_silu")
def gelu_for_silu(x: Tensor) -> Tensor:  # noqa: D103
    gate, value = _up(x).chunk(2, -1)
    return (torch.nn.functional.gelu(gate) * value).to(x.dtype)


@implements("silu_and_mul@1", name="exponential_overflows")
def exponential_overflows(x: Tensor) -> Tensor:  # noqa: D103
    gate, value = _up(x).chunk(2, -1)
    e = torch.exp(gate)
    return (gate * (e / (1 + e)) * value).to(x.dtype)


@implements("silu_and_mul_out@1", name="tail_unwritten")
def tail_unwritten(x: Tensor, *, out: Tensor) -> None:  # noqa: D103
    gate, value = _up(x).chunk(2, -1)
    whole = out.shape[-1] // 64 * 64 or out.shape[-1]
    out[..., :whole] = (torch.nn.functional.silu(gate) * value)[..., :whole].to(x.dtype)


@implements("rotary_embedding@1", name="sine_of_the_wrong_sign")
def sine_of_the_wrong_sign(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    found: list[Tensor] = rotary_embedding.reference(q, k, cos, -sin, pairing)
    return found


@implements("rotary_embedding@1", name="pairing_ignored")
def pairing_ignored(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    del pairing
    found: list[Tensor] = rotary_embedding.reference(q, k, cos, sin, "neox")
    return found


@implements("kv_cache_write@1", name="negative_slot_written")
def negative_slot_written(  # noqa: D103
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    capacity = k_cache.shape[0] * k_cache.shape[1]
    flat, width = slots.reshape(-1) % capacity, k.shape[-2:]
    kv_cache_write.reference(
        k.reshape(-1, *width), v.reshape(-1, *width), k_cache, v_cache, flat, layout
    )


@implements("linear@1", name="rows_after_64_repeat")
def rows_after_64_repeat(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, weight, bias)
    rows = y.view(-1, y.shape[-1])
    rows[64:] = rows[63:64]
    return y


@implements("linear@1", name="bias_forgotten")
def bias_forgotten(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    del bias
    y: Tensor = linear.reference(x, weight, None)
    return y


@implements("linear@1", name="weights_through_eight_bits")
def weights_through_eight_bits(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, weight.to(torch.float8_e4m3fn).to(weight.dtype), bias)
    return y


@implements("sample_token@1", name="ids_in_sixteen_bits")
def ids_in_sixteen_bits(  # noqa: D103
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    rest = (temperature, top_k, top_p, min_p, seed, position)
    found: Tensor = sample_token.reference(logits[..., : 1 << 16], *rest)
    return found


VARIANTS = variants(
    "value",
    (
        eps_outside_the_root,
        divides_by_n_minus_one,
        accumulates_in_bfloat16,
        gain_of_two_per_mille,
        squares_overflow_in_float16,
        returns_zeros,
        halves_swapped,
        gelu_for_silu,
        exponential_overflows,
        tail_unwritten,
        sine_of_the_wrong_sign,
        pairing_ignored,
        negative_slot_written,
        rows_after_64_repeat,
        bias_forgotten,
        weights_through_eight_bits,
        ids_in_sixteen_bits,
    ),
)
