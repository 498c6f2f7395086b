"""Legal ways to supply an operator: one form only, packs, narrow domains; accepted by all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue.activation import silu_and_mul
from trivet.catalogue.linear import linear
from trivet.catalogue.norm import fused_add_rms_norm, rms_norm
from trivet.contracts import (
    absent,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    one_of,
    rank,
    rows,
)
from trivet.contracts.terms import has_rows
from trivet.errors import DomainError
from trivet_conformance.selftest.mutants.variant import variants


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise DomainError(what)


def _rounded_once(
    x: Tensor, weight: Tensor, eps: float, offset: float, variance_size: int = 0
) -> Tensor:
    """A norm in float64, rounded at its end."""
    scalars = (eps, offset, True, variance_size)
    y: Tensor = rms_norm.reference(x.double(), weight.double(), *scalars)
    return y.to(x.dtype)


@implements("silu_and_mul_out@1", name="out_form_only")
def out_form_only(x: Tensor, *, out: Tensor) -> None:  # noqa: D103
    out.copy_(silu_and_mul.reference(x.double()))


@implements("fused_add_rms_norm_@1", name="inplace_form_only")
def inplace_form_only(  # noqa: D103
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    _, total = fused_add_rms_norm.reference(x, residual, weight, *scalars)
    x.copy_(_rounded_once(total, weight, eps, weight_offset, variance_size))
    residual.copy_(total)


@implements(
    "rms_norm@1",
    name="narrow_and_checked",
    domain=[
        dtype("x", "float32", "bfloat16"),
        equal("weight.dtype", "x.dtype"),
        divisible("hidden", 8),
        between("hidden", 16, 4096),
        rows("x", 8),
        contiguous("weight"),
        one_of("weight_offset", 0.0),
        one_of("weight_in_float32", True),
        one_of("variance_size", 0),
    ],
)
def narrow_and_checked(  # noqa: D103
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    _require(x.dtype in (torch.float32, torch.bfloat16), "x must be float32 or bfloat16")
    _require(weight.dtype == x.dtype, "weight must have the dtype of x")
    _require(x.shape[-1] % 8 == 0, "hidden must be a multiple of 8")
    _require(16 <= x.shape[-1] <= 4096, "hidden must be from 16 to 4096")
    _require(has_rows(tuple(x.shape), x.stride(), 1, 8), "x must have rows")
    _require(weight.is_contiguous(), "weight must be contiguous")
    _require(weight_offset == 0.0 and weight_in_float32, "weight_offset is not supported")
    _require(variance_size == 0, "variance_size is not supported")
    return _rounded_once(x, weight, eps, weight_offset)


@implements(
    "linear@1",
    name="pointers_behind_a_guard",
    checks=False,
    domain=[rank("x", 2), absent("bias"), contiguous("x"), contiguous("weight")],
)
def pointers_behind_a_guard(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Relies on its guard, and would read wild memory without: it must not be called outside."""
    if bias is not None or not x.is_contiguous() or not weight.is_contiguous() or x.dim() != 2:
        msg = "called outside its domain"
        raise SystemError(msg)
    y: Tensor = linear.reference(x.double(), weight.double(), None)
    return y.to(x.dtype)


def _transposed(facts: Mapping[str, Any], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    del facts, bias
    return [weight.T.contiguous()]


@implements("linear_packed@1", name="packed_transposed", prepare=_transposed)
def packed_transposed(  # noqa: D103
    x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None
) -> Tensor:
    y: Tensor = linear.reference(x, packed[0].T[:out_features], bias)
    return y


@implements("sample_token@1", name="first_of_the_largest", domain=[absent("temperature")])
def first_of_the_largest(  # noqa: D103
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    if temperature is not None:
        msg = "greedy only"
        raise DomainError(msg, fix="pass no temperature")
    del top_k, top_p, min_p, seed, position
    wide = torch.nan_to_num(logits.double(), nan=torch.inf, posinf=1e300, neginf=-1e300)
    return wide.argmax(-1) if logits.shape[-1] else wide.new_zeros(wide.shape[:-1]).long()


@implements("kv_cache_write@1", name="token_by_token")
def token_by_token(  # noqa: D103
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    del layout
    keys, values = (t.reshape(-1, *t.shape[-2:]) for t in (k, v))
    for token, slot in enumerate(slots.reshape(-1).tolist()):
        if slot >= 0:
            block, row = divmod(slot, k_cache.shape[1])
            k_cache[block, row] = keys[token]
            v_cache[block, row] = values[token]


VARIANTS = variants(
    "",
    (
        out_form_only,
        inplace_form_only,
        narrow_and_checked,
        pointers_behind_a_guard,
        packed_transposed,
        first_of_the_largest,
        token_by_token,
    ),
)
