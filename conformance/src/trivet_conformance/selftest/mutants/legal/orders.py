"""More legal arithmetic: fused products, other orders of accumulation, running maxima."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts import implements
from trivet_conformance.selftest.mutants.attention_loop import Loop
from trivet_conformance.selftest.mutants.variant import variants


def _up(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


@implements("fused_add_rms_norm@1", name="sum_of_squares_by_halves")
def sum_of_squares_by_halves(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Two halves of a row are summed apart; the root is a division."""
    total = (_up(x) + _up(residual)).to(residual.dtype)
    f, n = _up(total), variance_size or x.shape[-1]
    halves = f[..., : n // 2], f[..., n // 2 : n]
    left, right = (p.pow(2).sum(-1, keepdim=True) for p in halves)
    f = f * (1 / torch.sqrt((left + right) / n + eps))
    if weight_in_float32:
        return (f * (_up(weight) + weight_offset)).to(x.dtype), total
    return (f.to(x.dtype) * (weight + weight_offset)).to(x.dtype), total


@implements("silu_and_mul@1", name="sigmoid_in_float64")
def sigmoid_in_float64(x: Tensor) -> Tensor:  # noqa: D103
    gate, value = x.double().chunk(2, -1)
    return (gate * torch.sigmoid(gate) * value).to(x.dtype)


@implements("rotary_embedding@1", name="fused_products")
def fused_products(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Products are added before they are rounded, as a fused multiply-add does."""
    n, c, s = cos.shape[-1], cos.double().unsqueeze(-2), sin.double().unsqueeze(-2)
    first = slice(0, n) if pairing == "neox" else slice(0, 2 * n, 2)
    second = slice(n, 2 * n) if pairing == "neox" else slice(1, 2 * n, 2)
    results = []
    for t in (q, k):
        if t is not None:
            result, f = t.clone(memory_format=torch.contiguous_format), t.double()
            result[..., first] = (f[..., first] * c - f[..., second] * s).to(t.dtype)
            result[..., second] = (f[..., second] * c + f[..., first] * s).to(t.dtype)
            results.append(result)
    return results


@implements("linear@1", name="sum_in_float64_and_bias_first")
def sum_in_float64_and_bias_first(  # noqa: D103
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    total = x.double() @ weight.double().T
    return (total if bias is None else bias.double() + total).to(x.dtype)


def _running(scores: Tensor, hidden: Tensor) -> Tensor:
    """Keys one block after the other, with a running maximum and sum."""
    scores = scores.masked_fill(hidden, -torch.inf)
    weights, top = torch.zeros_like(scores), torch.full_like(scores[:, :1], -torch.inf)
    total = torch.zeros_like(top)
    for start in range(0, scores.shape[1], 3):
        block = scores[:, start : start + 3]
        new = torch.maximum(top, block.amax(-1, keepdim=True))
        safe = new.masked_fill(new == -torch.inf, 0.0)
        keep = torch.exp(top - safe)
        weights[:, :start] *= keep
        weights[:, start : start + 3] = torch.exp(block - safe)
        total = total * keep + weights[:, start : start + 3].sum(-1, keepdim=True)
        top = new
    return (weights / total).masked_fill(hidden.all(-1, keepdim=True), 0.0)


@implements("paged_attention@1", name="running_maximum")
def running_maximum(  # noqa: D103
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
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    return Loop(softmax=_running)(*batch, scale, window, soft_cap)


VARIANTS = variants(
    "",
    (
        sum_of_squares_by_halves,
        sigmoid_in_float64,
        fused_products,
        sum_in_float64_and_bias_first,
        running_maximum,
    ),
)
