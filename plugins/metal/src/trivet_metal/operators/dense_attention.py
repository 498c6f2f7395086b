"""attention over dense keys and values, with masks of any of the floating dtypes or bools."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from trivet.contracts import Term, between, dtype, equal, implements
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.operators.attention import (
    ENDLESS,
    SPLITS,
    WIDEST,
    WIDTHS,
    file_for,
    simdgroups_of,
    width_of,
)
from trivet_metal.packages import Package
from trivet_metal.row_layout import SIMD

_MASKS: Final = {torch.bool: 1, torch.float32: 2, torch.float16: 3, torch.bfloat16: 4}
"""Numbers of the dtypes of masks, as the kernels have them; 0 is none."""

_FEW_ROWS: Final = 8
"""Rows of a key head up to which each is taken by itself."""

_SOURCES: Final = (
    "../kernels/instances.h",
    "../kernels/attention.h",
    "../kernels/attention_kernels.h",
    *(f"../kernels/attention_{width}.metal" for width in WIDTHS),
)
_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("v.dtype", "q.dtype"),
    between("head_dim", 1, WIDEST),
    between("value_dim", 1, WIDEST),
]
_STEPS: Final = (
    *(f"{t}_{dim}" for t in "qkv" for dim in ("batch", "token", "head")),
    *(f"mask_{dim}" for dim in ("batch", "head", "query", "key")),
)
_COUNTS: Final = (
    "queries", "keys", "heads", "kv_heads", "head_dim", "value_dim", "causal", "window",
    "mask_kind",
)  # fmt: skip
_ARGUMENTS: Final = (
    "q: in T*", "k: in T*", "v: in T*", "mask: in M*", "out: out T*",
    *(f"{name}: int64" for name in _STEPS),
    *(f"{name}: int32" for name in _COUNTS),
    "scale: float", "soft_cap: float",
)  # fmt: skip


class _Kernels(NamedTuple):
    rows: Package
    tiles: Package


KERNELS: Final = {
    width: _Kernels(
        Package(file_for(width), "dense_vector_{T}", _ARGUMENTS),
        Package(file_for(width), "dense_tile_{T}", _ARGUMENTS),
    )
    for width in WIDTHS
}


def _refuse(what: str, fix: str) -> None:
    msg = f"attention: {what}"
    raise DomainError(msg, operator="attention", fix=fix)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Verifies what addresses depend on and no shape text says.

    Raises:
        DomainError: kv_heads does not divide heads, or tensors do not fit together.
    """
    (batch, queries, heads, head_dim), keys = q.shape, k.shape
    if keys[0] != batch or keys[3] != head_dim or v.shape[:3] != keys[:3]:
        shapes = ", ".join(str(list(t.shape)) for t in (q, k, v))
        _refuse(f"shapes {shapes} do not fit together", "[batch tokens heads features]")
    if keys[2] < 1 or heads % keys[2]:
        _refuse(f"k has {keys[2]} heads, q has {heads}", "kv_heads must divide heads")
    if mask is None:
        return
    wanted = (batch, heads, queries)
    fits = all(n in (1, full) for n, full in zip(mask.shape, wanted, strict=False))
    if not fits or mask.shape[3] != keys[1]:
        what = f"mask has shape {list(mask.shape)}, q {list(q.shape)}, {keys[1]} keys"
        _refuse(what, "its dims batch, heads and queries are those of the call or 1")
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        _refuse(f"mask is {mask.dtype}", "bool (True: may be seen) or floating numbers to add")


def _dense_heads(t: Tensor) -> Tensor:
    """The tensor with the features of a head side by side; nothing else need be."""
    return t if t.stride(3) == 1 or t.shape[3] == 1 else t.contiguous()


def _steps(t: Tensor) -> tuple[int, ...]:
    """Strides, 0 of dims that have one element: those of a mask are broadcast."""
    return tuple(s if n > 1 else 0 for n, s in zip(t.shape, t.stride(), strict=True))


@implements(
    "attention@1",
    name="metal",
    domain=_DOMAIN,
    sources=_SOURCES,
    deterministic=True,
    checks=False,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attends into a fresh tensor.

    Raises:
        DomainError: the reference refuses the call, too.
    """
    _check(q, k, v, mask)
    if window < 0 or soft_cap < 0:
        _refuse(f"window is {window}, soft_cap is {soft_cap}", "0 means none")
    (batch, queries, heads, head_dim), (_, keys, kv_heads, value_dim) = q.shape, v.shape
    out = torch.empty((batch, queries, heads, value_dim), dtype=q.dtype, device=q.device)
    if not keys or not out.numel():
        return out.zero_()
    if mask is not None and mask.dtype not in _MASKS:
        mask = mask.float()
    q, k, v = _dense_heads(q), _dense_heads(k), _dense_heads(v)
    kind = torch.bool if mask is None else mask.dtype
    width, group = width_of(max(head_dim, value_dim)), heads // kv_heads
    made = KERNELS[width]
    if group * queries <= _FEW_ROWS:
        size, package = SPLITS * SIMD, made.rows
        grid = (heads * size, queries, batch)
    else:
        simdgroups = simdgroups_of(width, q.element_size())
        size, package = simdgroups * SIMD, made.tiles
        grid = (-(-queries * group // (simdgroups * 8)) * size, kv_heads, batch)
    package.at(T=q.dtype, M=kind)(
        q, k, v, mask, out,
        *_steps(q)[:3], *_steps(k)[:3], *_steps(v)[:3],
        *((0, 0, 0, 0) if mask is None else _steps(mask)),
        queries, keys, heads, kv_heads, head_dim, value_dim, causal, min(window, ENDLESS),
        0 if mask is None else _MASKS[kind], scale, soft_cap,
        threads=grid, group=(size, 1, 1),
    )  # fmt: skip
    return out
