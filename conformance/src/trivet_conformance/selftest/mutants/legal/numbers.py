"""Legal arithmetic: other orders, other formulas, more precision; accepted by every family."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts import between, implements
from trivet.errors import DomainError
from trivet_conformance.selftest.mutants.variant import variants

LANES = 8
"""Partial sums of a vector unit."""

CHUNK = 64
"""Elements that one block of a longer sum takes."""


def _up(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _scaled(f: Tensor, x: Tensor, weight: Tensor, offset: float, in_float32: bool) -> Tensor:
    if in_float32:
        return (f * (_up(weight) + offset)).to(x.dtype)
    return (f.to(x.dtype) * (weight + offset)).to(x.dtype)


def _padded(f: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(f, (0, -f.shape[-1] % multiple))


def _kahan(f: Tensor, lanes: int) -> Tensor:
    """A compensated sum over the last dim, several lanes at a time."""
    padded = _padded(f, lanes)
    parts = padded.reshape(*padded.shape[:-1], padded.shape[-1] // lanes, lanes)
    total, lost = torch.zeros_like(parts[..., 0, :]), torch.zeros_like(parts[..., 0, :])
    for i in range(parts.shape[-2]):
        term = parts[..., i, :] - lost
        new = total + term
        lost = ((new - total) - term).where(new.isfinite(), 0.0)
        total = new
    return total.sum(-1, keepdim=True)


@implements("rms_norm@1", name="sum_in_float64")
def sum_in_float64(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = x[..., : variance_size or None].double()
    root = torch.rsqrt(seen.pow(2).mean(-1, keepdim=True) + eps).float()
    return _scaled(f * root, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="kahan_sum")
def kahan_sum(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = f[..., : variance_size or None]
    root = torch.rsqrt(_kahan(seen * seen, 16) / seen.shape[-1] + eps)
    return _scaled(f * root, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="one_element_after_the_other")
def one_element_after_the_other(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = f[..., : variance_size or None]
    root = torch.rsqrt(seen.pow(2).cumsum(-1)[..., -1:] / seen.shape[-1] + eps)
    return _scaled(f * root, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="lanes_with_zero_padding")
def lanes_with_zero_padding(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    f = _up(x)
    seen = f[..., : variance_size or None]
    padded = _padded(seen, LANES)
    parts = padded.reshape(*padded.shape[:-1], padded.shape[-1] // LANES, LANES)
    lanes = parts.pow(2).cumsum(-2)[..., -1, :]
    root = 1 / torch.sqrt(lanes.cumsum(-1)[..., -1:] / seen.shape[-1] + eps)
    return _scaled(f * root, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="newton_root")
def newton_root(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """A bfloat16 estimate of the root, and three steps of Newton's iteration."""
    f = _up(x)
    a = f[..., : variance_size or None].pow(2).mean(-1, keepdim=True) + eps
    root = torch.rsqrt(a).bfloat16().float()
    for _ in range(3):
        step = root * (1.5 - 0.5 * a * root * root)
        root = torch.where(a.isfinite(), step, root)
    return _scaled(f * root, x, weight, weight_offset, weight_in_float32)


@implements("rms_norm@1", name="one_rounding")
def one_rounding(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Rounds once, also where two roundings are declared: it is only nearer to the truth."""
    del weight_in_float32
    f, scale = _up(x), _up(weight) + weight_offset
    if not variance_size:
        return torch.nn.functional.rms_norm(f, (x.shape[-1],), scale, eps).to(x.dtype)
    root = torch.rsqrt(f[..., :variance_size].pow(2).mean(-1, keepdim=True) + eps)
    return (f * root * scale).to(x.dtype)


@implements("silu_and_mul@1", name="by_hyperbolic_tangent", domain=[between("inter", 64, None)])
def by_hyperbolic_tangent(x: Tensor) -> Tensor:
    """Cancels at very negative gates, which shows where a row holds nothing else."""
    if x.shape[-1] < 128:
        msg = "inter must be at least 64"
        raise DomainError(msg)
    gate, value = _up(x).chunk(2, -1)
    return (0.5 * gate * (1 + torch.tanh(0.5 * gate)) * value).to(x.dtype)


@implements("silu_and_mul@1", name="divided_by_one_plus_exponential")
def divided_by_one_plus_exponential(x: Tensor) -> Tensor:  # noqa: D103
    gate, value = _up(x).chunk(2, -1)
    return (gate / (1 + torch.exp(-gate)) * value).to(x.dtype)


@implements("rotary_embedding@1", name="complex_numbers")
def complex_numbers(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    n, turn = cos.shape[-1], torch.complex(cos, sin).unsqueeze(-2)
    first = slice(0, n) if pairing == "neox" else slice(0, 2 * n, 2)
    second = slice(n, 2 * n) if pairing == "neox" else slice(1, 2 * n, 2)
    results = []
    for t in (q, k):
        if t is not None:
            result = t.clone(memory_format=torch.contiguous_format)
            pair = torch.complex(_up(t[..., first]), _up(t[..., second])) * turn
            result[..., first], result[..., second] = pair.real.to(t.dtype), pair.imag.to(t.dtype)
            results.append(result)
    return results


@implements("linear@1", name="chunks_of_the_sum")
def chunks_of_the_sum(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Sums over blocks of the inner dim, one after the other, in float32."""
    f, w = _up(x), _up(weight)
    total = torch.zeros((*x.shape[:-1], weight.shape[0]))
    for start in range(0, x.shape[-1], CHUNK):
        total = total + f[..., start : start + CHUNK] @ w[:, start : start + CHUNK].T
    return (total if bias is None else total + _up(bias)).to(x.dtype)


VARIANTS = variants(
    "",
    (
        sum_in_float64,
        kahan_sum,
        one_element_after_the_other,
        lanes_with_zero_padding,
        newton_root,
        one_rounding,
        by_hyperbolic_tangent,
        divided_by_one_plus_exponential,
        complex_numbers,
        chunks_of_the_sum,
    ),
)
