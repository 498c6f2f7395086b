"""Wrong numbers in one corner only: other scalars, sizes or dtypes than a plain test has."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.embedding import embedding
from trivet.catalogue.kv_cache import kv_cache_write
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import fused_add_rms_norm, rms_norm
from trivet.catalogue.rotary import rotary_embedding
from trivet.catalogue.sampling import sample_token
from trivet.contracts import implements
from trivet_conformance.selftest.mutants.attention_loop import Loop
from trivet_conformance.selftest.mutants.variant import variants


@implements("rms_norm@1", name="eps_dropped")
def eps_dropped(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    del eps
    y: Tensor = rms_norm.reference(x, weight, 0.0, weight_offset, weight_in_float32, variance_size)
    return y


@implements("rms_norm@1", name="eps_always_the_default")
def eps_always_the_default(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    del eps
    y: Tensor = rms_norm.reference(x, weight, 1e-6, weight_offset, weight_in_float32, variance_size)
    return y


@implements("rms_norm@1", name="mean_removed_from_long_rows")
def mean_removed_from_long_rows(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Takes a layer norm's second pass where a row does not fit its buffer."""
    if x.shape[-1] > 512:
        x = (x.float() - x.float().mean(-1, keepdim=True)).to(x.dtype)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("rms_norm@1", name="one_added_to_float32_weights")
def one_added_to_float32_weights(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    offset = 1.0 if weight_in_float32 else weight_offset
    y: Tensor = rms_norm.reference(x, weight, eps, offset, weight_in_float32, variance_size)
    return y


@implements("rms_norm@1", name="variance_of_the_whole_row")
def variance_of_the_whole_row(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    del variance_size
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32)
    return y


@implements("rms_norm@1", name="claims_what_it_cannot")
def claims_what_it_cannot(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    if x.shape[-1] % 8:
        msg = "vectors of 8"
        raise ValueError(msg)
    y: Tensor = rms_norm.reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements("fused_add_rms_norm@1", name="residual_of_the_last_rows_kept")
def residual_of_the_last_rows_kept(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Rows are done four at a time; those of the rest keep the old residual."""
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    y, total = fused_add_rms_norm.reference(x, residual, weight, *scalars)
    rows, old = (t.view(-1, t.shape[-1]) for t in (total, residual.contiguous()))
    rows[rows.shape[0] // 4 * 4 :] = old[rows.shape[0] // 4 * 4 :]
    return y, total


@implements("silu_and_mul@1", name="small_results_become_zero")
def small_results_become_zero(x: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = silu_and_mul.reference(x)
    return y.masked_fill(y.abs() < 1e-5, 0.0)


@implements("silu_and_mul@1", name="gate_clamped")
def gate_clamped(x: Tensor) -> Tensor:  # noqa: D103
    gate, value = x.chunk(2, -1)
    y: Tensor = silu_and_mul.reference(torch.cat((gate.clamp(-20, 20), value), -1))
    return y


@implements("silu_and_mul@1", name="halves_cut_for_even_sizes")
def halves_cut_for_even_sizes(x: Tensor) -> Tensor:
    """An odd half is taken one element too late."""
    half = x.shape[-1] // 2
    if half % 2 and half > 1:
        x = torch.cat((x[..., 1 : half + 1], x[..., half:]), -1)
    y: Tensor = silu_and_mul.reference(x)
    return y


@implements("rotary_embedding@1", name="angles_in_half_precision")
def angles_in_half_precision(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    if q.dtype == torch.float16:
        cos, sin = (t.bfloat16().float() for t in (cos, sin))
    found: list[Tensor] = rotary_embedding.reference(q, k, cos, sin, pairing)
    return found


@implements("rotary_embedding@1", name="whole_heads_turned")
def whole_heads_turned(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Pairs a feature with that half a head away, also where fewer features turn."""
    half, n = q.shape[-1] // 2, cos.shape[-1]
    if pairing != "neox" or half == n:
        found: list[Tensor] = rotary_embedding.reference(q, k, cos, sin, pairing)
        return found
    order = [*range(n), *range(half, half + n)]
    rest = [i for i in range(q.shape[-1]) if i not in order]
    results = []
    for t in (q, k):
        if t is not None:
            moved = t[..., order + rest]
            turned = rotary_embedding.reference(moved, None, cos, sin, pairing)[0]
            back = torch.empty_like(t, memory_format=torch.contiguous_format)
            back[..., order + rest] = turned
            results.append(back)
    return results


@implements("rotary_embedding@1", name="sine_of_interleaved_pairs_negated")
def sine_of_interleaved_pairs_negated(  # noqa: D103
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    sign = -1.0 if pairing == "interleaved" else 1.0
    found: list[Tensor] = rotary_embedding.reference(q, k, cos, sin * sign, pairing)
    return found


@implements("kv_cache_write@1", name="blocks_of_sixteen_assumed")
def blocks_of_sixteen_assumed(  # noqa: D103
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    size, capacity = k_cache.shape[1], k_cache.shape[0] * k_cache.shape[1]
    block, row = slots // 16, slots % 16
    moved = ((block * size + row % max(size, 1)) % max(capacity, 1)).where(slots >= 0, slots)
    kv_cache_write.reference(k, v, k_cache, v_cache, moved, layout)


@implements("kv_cache_write@1", name="values_without_their_last_head")
def values_without_their_last_head(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Heads are copied in pairs, counted from the tokens' side."""
    before = v_cache[:, :, -1].clone()
    kv_cache_write.reference(k, v, k_cache, v_cache, slots, layout)
    if v.shape[-2] % 2 == 0:
        v_cache[:, :, -1] = before


@implements("linear@1", name="bias_forgotten_for_one_row")
def bias_forgotten_for_one_row(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A matrix-vector kernel beside the matrix one, without the epilogue."""
    single = x.numel() == x.shape[-1]
    y: Tensor = linear.reference(x, weight, None if single else bias)
    return y


@implements("embedding@1", name="rows_of_sixteen_bits")
def rows_of_sixteen_bits(ids: Tensor, weight: Tensor) -> Tensor:  # noqa: D103
    y: Tensor = embedding.reference(ids & 0xFFFF, weight)
    return y


@implements("sample_token@1", name="last_of_the_vocabulary_missed")
def last_of_the_vocabulary_missed(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Loops over whole vectors of four."""
    whole = logits.shape[-1] // 4 * 4 or logits.shape[-1]
    rest = (temperature, top_k, top_p, min_p, seed, position)
    found: Tensor = sample_token.reference(logits[..., :whole], *rest)
    return found


@implements("paged_attention@1", name="half_of_the_soft_cap")
def half_of_the_soft_cap(  # noqa: D103
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
    return Loop()(*batch, scale, window, soft_cap / 2)


@implements("paged_attention@1", name="weights_in_eight_bits")
def weights_in_eight_bits(
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
    """Weights of a half-precision call go through eight bits on the way to the values."""
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    mix = _eight_bits if q.dtype == torch.float16 else torch.matmul
    return Loop(mix=mix)(*batch, scale, window, soft_cap)


def _eight_bits(weights: Tensor, values: Tensor) -> Tensor:
    return weights.to(torch.float8_e4m3fn).float() @ values


VARIANTS = variants(
    "value",
    (
        eps_dropped,
        eps_always_the_default,
        mean_removed_from_long_rows,
        one_added_to_float32_weights,
        variance_of_the_whole_row,
        claims_what_it_cannot,
        residual_of_the_last_rows_kept,
        small_results_become_zero,
        gate_clamped,
        halves_cut_for_even_sizes,
        angles_in_half_precision,
        whole_heads_turned,
        sine_of_interleaved_pairs_negated,
        blocks_of_sixteen_assumed,
        values_without_their_last_head,
        bias_forgotten_for_one_row,
        rows_of_sixteen_bits,
        last_of_the_vocabulary_missed,
        half_of_the_soft_cap,
        weights_in_eight_bits,
    ),
)
