"""attention by torch's product, for many queries and for masks; the compiled tiles else.

Measured on one core of a Xeon with AVX-512 and AMX (torch 2.13), time of torch's
``scaled_dot_product_attention`` over the tiles':

======== ========= =========== ============ ================
dtype    1 query   4-8 queries 16 queries   64 and more
======== ========= =========== ============ ================
float32  3.4-3.5   2.3-2.5     1.3          0.4-1.3
bfloat16 1.9-3.1   1.6-3.0     0.6          0.1-0.5
======== ========= =========== ============ ================

Under a window torch still reads every key, the tiles only those that are seen: they are 1.3-13
times as fast at windows of 65 to 512 in 512 to 2048 tokens. They take a soft cap but no mask, and
they are batch invariant; torch's product takes a mask but no soft cap, and promises nothing.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from trivet.contracts import Term, absent, between, dtype, equal, implements, present
from trivet.errors import DomainError
from trivet_cpu.kernel_library import BIND

BEFORE_COMPILED: Final = True
PROMISES: Final[frozenset[str]] = frozenset()
"""Nothing: torch chooses its product, and large numbers are looked for on the host."""
_FROM_QUERIES: Final = 9
_DOMAIN: Final[list[Term]] = [
    dtype("q", "float32", "bfloat16"),
    equal("soft_cap", 0.0),
]


def _refuse(what: str, fix: str = BIND) -> None:
    msg = f"attention: {what}"
    raise DomainError(msg, operator="attention", fix=fix)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Refuses what torch's product would take for something else."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        _refuse(f"q, k, v have {q.dim()}, {k.dim()}, {v.dim()} dims, not 4")
    if q.dtype not in (torch.float32, torch.bfloat16) or not q.dtype == k.dtype == v.dtype:
        _refuse(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, not all float32 or all bfloat16")
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
    if mask.dtype not in (torch.bool, torch.float32, torch.bfloat16):
        _refuse(f"mask is {mask.dtype}, not bool, float32 or bfloat16")


def _visible(queries: int, keys: int, *, causal: bool, window: int) -> Tensor:
    """Which keys ``[keys]`` a query ``[queries]`` may see by position."""
    ahead = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    return seen & (ahead > -window) & (ahead < window) if window else seen


def _in_steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attends step by step in float32, hidden keys left out whatever they hold."""
    group = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(group, 1) for t in (k, v))
    scores = torch.matmul(q.float(), keys.mT) * scale
    if mask is not None:
        floating = mask.dtype is not torch.bool
        hidden = mask == -torch.inf if floating else ~mask
        scores = (scores + mask if floating else scores).masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    else:
        weights = scores.softmax(-1)
    return torch.matmul(weights, values).to(q.dtype)


def _torch_product(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, causal: bool, window: int
) -> Tensor:
    """Attends with torch over ``[batch, heads, tokens, width]``.

    torch aligns causal positions at the start, adds ``-inf`` where a mask hides (so that a hidden
    NaN spoils a row), and gives zeros or NaN, by version, where no score is finite. A row with a
    NaN or without any value is therefore computed again, unless it sees nothing.
    """
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    queries, keys = q.shape[2], k.shape[2]
    square = causal and queries == keys and not window and mask is None
    if not square and (window or (causal and queries > 1)):
        seen = _visible(queries, keys, causal=causal, window=window)
        if mask is None:
            mask = seen[None, None]
        elif mask.dtype is torch.bool:
            mask = mask & seen
        else:
            mask = mask.masked_fill(~seen, -torch.inf)
    if mask is not None and mask.dtype is torch.bfloat16:
        mask = mask.float()  # torch takes float32 or the dtype of q
    result = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=square, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    blind = None
    if mask is not None:
        hidden = ~mask if mask.dtype is torch.bool else mask == -torch.inf
        blind = hidden.all(-1)
    fine = result.detach().sum(-1).abs() > 0  # false for NaN as well
    if not bool((fine if blind is None else fine | blind).all()):
        if square:
            mask = _visible(queries, keys, causal=True, window=0)[None, None]
        result = _in_steps(q, k, v, mask, scale)
    if blind is not None and bool(blind.any()):
        result = result.masked_fill(blind[..., None], 0.0)
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
    if torch.is_autocast_enabled("cpu"):  # autocast must not change an operator's meaning
        with torch.autocast("cpu", enabled=False):
            return _torch_product(q, k, v, mask, scale, causal=causal, window=window)
    return _torch_product(q, k, v, mask, scale, causal=causal, window=window)


@implements(
    "attention@1",
    name="torch",
    domain=[
        *_DOMAIN,
        absent("mask"),
        equal("window", 0),
        between("queries", _FROM_QUERIES, None),
    ],
)
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
    """Attends with torch's ``scaled_dot_product_attention``, made exact at its edges."""
    if mask is not None or window or q.dim() < 2 or q.shape[1] < _FROM_QUERIES:
        given = "absent" if mask is None else "given"
        _refuse(f"q has shape {list(q.shape)}, the mask is {given}, the window is {window}")
    return _attend(q, k, v, None, scale, causal, window, soft_cap)


@implements(
    "attention@1",
    name="torch-masked",
    domain=[*_DOMAIN, present("mask"), dtype("mask", "bool", "float32", "bfloat16")],
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
