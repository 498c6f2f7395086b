"""attention by torch's own product: flash without a mask, its memory-efficient kernel under one.

torch aligns causal positions at the start and leaves open what a row without a visible key gives,
so that only a square causal call is torch's own; the rest becomes a mask here. Nothing waits for
the device: a call may be captured. Keys that no query sees are zeroed before torch adds ``-inf``
to their scores, for it would add that to a NaN; one that holds a NaN and is hidden from some
queries only spoils those as well.

Kernels for few key heads exist for 16-bit types without a mask; else keys are repeated, since
torch would otherwise write all scores to memory.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from trivet.contracts import Term, absent, dtype, equal, implements, one_of, present
from trivet.errors import DomainError

_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN: Final[list[Term]] = [
    dtype("q", "float32", "float16", "bfloat16"),
    equal("k.dtype", "q.dtype"),
    equal("v.dtype", "q.dtype"),
    one_of("soft_cap", 0.0),
]


def _refuse(what: str, fix: str = "call it through a bind, which keeps to the domain") -> None:
    msg = f"attention: {what}"
    raise DomainError(msg, operator="attention", fix=fix)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Refuses what torch's product would take for something else."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        _refuse(f"q, k, v have {q.dim()}, {k.dim()}, {v.dim()} dims, not 4")
    if q.dtype not in _FLOATS or not q.dtype == k.dtype == v.dtype:
        _refuse(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, not one floating type")
    (batch, queries, heads, width), (_, keys, kv_heads, _) = q.shape, k.shape
    if k.shape != (batch, keys, kv_heads, width) or v.shape[:3] != k.shape[:3]:
        _refuse(f"shapes {list(q.shape)}, {list(k.shape)}, {list(v.shape)} do not fit together")
    if kv_heads < 1 or heads % kv_heads:
        _refuse(f"k has {kv_heads} heads, q has {heads}", "kv_heads must divide heads")
    if mask is None:
        return
    full = (batch, heads, queries)
    if mask.dim() != 4 or mask.shape[3] != keys:
        _refuse(f"mask has shape {list(mask.shape)}, there are {keys} keys")
    if any(n not in (1, m) for n, m in zip(mask.shape, full, strict=False)):
        what = f"mask has shape {list(mask.shape)}, q {list(q.shape)}"
        _refuse(what, "its dims batch, heads and queries are those of the call or 1")
    if mask.dtype not in (torch.bool, q.dtype):
        _refuse(f"mask is {mask.dtype}, neither bool nor {q.dtype}")


def _visible(q: Tensor, keys: int, *, causal: bool, window: int) -> Tensor:
    """Which keys ``[1, 1, queries, keys]`` a query may see by position."""
    queries = q.shape[2]
    own = torch.arange(keys - queries, keys, device=q.device)[:, None]
    ahead = torch.arange(keys, device=q.device) - own
    seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    seen = seen & (ahead > -window) & (ahead < window) if window else seen
    return seen[None, None]


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The product under a mask, with zeros where a row sees nothing."""
    hidden = mask == -torch.inf if mask.is_floating_point() else ~mask
    unseen = hidden.all(2, keepdim=True).all(1, keepdim=True).transpose(2, 3)
    k = k.masked_fill(unseen, 0.0)
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    made = functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    return made.masked_fill(hidden.all(-1, keepdim=True), 0.0)


def _product(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, causal: bool, window: int
) -> Tensor:
    """Attends with torch over ``[batch, heads, tokens, width]``."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    queries, keys = q.shape[2], k.shape[2]
    square = causal and queries == keys and not window and mask is None
    if not square and (window or (causal and queries > 1)):
        seen = _visible(q, keys, causal=causal, window=window)
        if mask is None:
            mask = seen
        elif mask.dtype is torch.bool:
            mask = mask & seen
        else:
            mask = mask.masked_fill(~seen, -torch.inf)
    if mask is not None:
        result = _masked(q, k, v, mask, scale)
    else:
        group = q.shape[1] // k.shape[1]
        if group > 1 and q.dtype is torch.float32:
            k, v = (t.repeat_interleave(group, 1) for t in (k, v))
            group = 1
        result = functional.scaled_dot_product_attention(
            q, k, v, is_causal=square, scale=scale, enable_gqa=group > 1
        )
    return result.transpose(1, 2).contiguous()


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    _check(q, k, v, mask)
    if soft_cap or window < 0:
        _refuse(f"soft_cap is {soft_cap}, window is {window}")
    batch, queries, heads, _ = q.shape
    if not (q.numel() and k.numel() and v.numel()):
        return q.new_zeros(batch, queries, heads, v.shape[3])
    kind = q.device.type
    if torch.is_autocast_enabled(kind):  # autocast must not change an operator's meaning
        with torch.autocast(kind, enabled=False):
            return _product(q, k, v, mask, scale, causal=causal, window=window)
    return _product(q, k, v, mask, scale, causal=causal, window=window)


@implements("attention@1", name="torch", domain=[*_DOMAIN, absent("mask")], graph_safe=True)
def attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attends with torch's ``scaled_dot_product_attention``; positions may become a mask."""
    if mask is not None:
        _refuse("there is a mask")
    return _attend(q, k, v, None, scale, causal, window, soft_cap)


@implements(
    "attention@1",
    name="torch_masked",
    domain=[*_DOMAIN, present("mask"), dtype("mask", "bool")],
    graph_safe=True,
    checks=False,  # it takes the other's masks, too
)
@implements(
    "attention@1",
    name="torch_biased",
    domain=[*_DOMAIN, present("mask"), equal("mask.dtype", "q.dtype")],
    graph_safe=True,
    checks=False,
)
def attention_torch_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attends with torch's product under a mask; positions that may not be seen join the mask."""
    if mask is None:
        _refuse("there is no mask")
    return _attend(q, k, v, mask, scale, causal, window, soft_cap)
