"""kv_cache_write: rows of keys and values into their slots, several tokens a program."""

# ruff: noqa: ARG001  # the scalars of a site are among its facts

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import inf
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet.kernels.triton import Kernel, Variant
from trivet_triton.constants import Constants
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import FLOATS, WIDE, named, power_of_two, row_stride
from trivet_triton.kernels.sites import Launches, at_bind


@triton.jit
def _write(
    k: tl.tensor,
    v: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slots: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    tokens: tl.tensor,
    capacity: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (token < tokens)[:, None] & (feature < WIDTH)
    key = tl.load(k + (token * k_stride)[:, None] + feature, mask=inside, other=0.0)
    value = tl.load(v + (token * v_stride)[:, None] + feature, mask=inside, other=0.0)
    # one load a token: with a dim more, every thread would load it for each of its features
    slot = tl.load(slots + token, mask=token < tokens, other=-1)[:, None]
    # nothing outside of a cache is ever written, whatever a slot says
    kept = (slot >= 0) & (slot < capacity) & (feature < WIDTH)
    to = slot * WIDTH + feature
    tl.store(k_cache + to, key.to(k_cache.dtype.element_ty), mask=kept)
    tl.store(v_cache + to, value.to(v_cache.dtype.element_ty), mask=kept)


_KERNEL: Final = Kernel(
    _write,
    settle=overlap,
    k="*T",
    v="*T",
    k_cache="*C",
    v_cache="*C",
    slots="*i64",
    k_stride="i64",
    v_stride="i64",
    tokens="i64",
    capacity="i64",
)

_WIDEST: Final = 4096
_FEW_TOKENS: Final = 512


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, int]]:
    """Tokens a program, and warps."""
    block = min(power_of_two(key["width"]), _WIDEST)
    for count in (1, 2, 4, 8):
        if count <= power_of_two(rows) and count * block <= 4 * _WIDEST:
            for warps in (1, 2, 4, 8):
                yield {"ROWS": count, "num_warps": warps}


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """One token a program while there are few; then 4096 elements of keys and of values."""
    block = min(power_of_two(key["width"]), _WIDEST)
    many = max(1, _WIDEST // block)
    return (
        (_FEW_TOKENS, {"ROWS": 1, "num_warps": 4}),
        (inf, {"ROWS": min(many, 4), "num_warps": 4}),
    )


_TUNED: Final = Constants("kv_cache_write", space=space, default=default)


def _variant(
    elements: tuple[torch.dtype, torch.dtype],
    width: int,
    config: Mapping[str, Any],
    *,
    aligned: bool,
) -> Variant:
    element, cached = elements
    promised = dict.fromkeys(("k", "v", "k_cache", "v_cache"), WIDE)
    promised |= dict.fromkeys(("k_stride", "v_stride"), WIDE // element.itemsize)
    return _KERNEL.variant(
        {"T": element, "C": cached},
        {"WIDTH": width, "ROWS": config["ROWS"], "BLOCK": min(power_of_two(width), _WIDEST)},
        divisible=promised if aligned else {},
        num_warps=config["num_warps"],
    )


@cache
def _launches(
    index: int, element: torch.dtype, cached: torch.dtype, width: int, aligned: bool
) -> tuple[tuple[float, int, Any], ...]:
    """``(most tokens, tokens a program, launch)``, for rising numbers of tokens."""
    key: dict[str, Any] = {"width": width, "dtype": named(element), "cache": named(cached)}
    return tuple(
        (
            limit,
            config["ROWS"],
            _variant((element, cached), width, config, aligned=aligned).on(device_at(index)),
        )
        for limit, config in _TUNED.buckets(arch_at(index), key)
    )


def refuse_layout(layout: str) -> None:
    """Raises for an order of cache blocks that no kernel here writes."""
    msg = f"the layout of the caches is {layout!r}"
    raise DomainError(msg, fix="use 'NHD', [blocks, block_size, kv_heads, head_dim]")


@cache
def _runner(
    element: torch.dtype,
    cached: torch.dtype,
    kv_heads: int,
    head_dim: int,
    layout: str,
    bound: bool | None = None,
    sure: bool = False,
) -> Callable[..., None]:
    """The operator for one kind of call; ``bound`` is None where there was no bind.

    ``sure`` says whether every tensor is known to start at a multiple of 16 bytes.
    """
    if layout != "NHD":
        refuse_layout(layout)
    width = kv_heads * head_dim
    fast = Launches(lambda index: _launches(index, element, cached, width, True))
    slow = Launches(lambda index: _launches(index, element, cached, width, False))
    size, pieces = element.itemsize, -(-width // _WIDEST)
    if bound is not None:
        (slow if width * size & (WIDE - 1) else fast).at_home()

    def kv_cache_write(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, layout: str = "NHD"
    ) -> None:
        k_strides, v_strides = k.stride(), v.stride()
        k_stride = k_strides[0] if len(k_strides) == 3 else row_stride(k, 2)
        v_stride = v_strides[0] if len(v_strides) == 3 else row_stride(v, 2)
        low = (k_stride | v_stride) * size
        if not sure:
            low |= k.data_ptr() | v.data_ptr() | k_cache.data_ptr() | v_cache.data_ptr()
        tokens = slots.numel()
        if not tokens:
            return
        for most, each, launch in (slow if low & 15 else fast)[k.get_device()]:
            if tokens <= most:
                launch(
                    -(-tokens // each), pieces, 1, k, v, k_cache, v_cache, slots,
                    k_stride, v_stride, tokens, k_cache.numel() // width,
                )  # fmt: skip
                return

    return kv_cache_write


_AT_BIND: Final = at_bind(
    _runner, "k.dtype", "k_cache.dtype", "kv_heads", "head_dim", "layout",
    aligned=("k", "v", "k_cache", "v_cache"),
)  # fmt: skip

_DOMAIN: Final[list[Term]] = [
    dtype("k", *FLOATS),
    equal("v.dtype", "k.dtype"),
    dtype("k_cache", *FLOATS),
    equal("v_cache.dtype", "k_cache.dtype"),
    rows("k"),
    rows("v"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    contiguous("slots"),
    one_of("layout", "NHD"),
]


@implements(
    "kv_cache_write@1",
    name="triton",
    domain=_DOMAIN,
    sources=("row_layout.py", "sites.py", "../constants.py", "../hardware.py"),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_AT_BIND,
)
def kv_cache_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Copies each token's rows into its slot; one that is not in the cache is left out."""
    _, _, kv_heads, head_dim = k_cache.shape
    run = _runner(k.dtype, k_cache.dtype, kv_heads, head_dim, layout)
    run(k, v, k_cache, v_cache, slots)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time."""
    for width in (1024, 5120):
        chosen = _TUNED.defaults(arch, {"width": width})
        for size, (_, config) in zip(("few", "many"), chosen, strict=True):
            for element in (torch.bfloat16, torch.float32):
                name = f"kv_cache/{width}/{size}/{element}".replace("torch.", "")
                yield name, _variant((element, element), width, config, aligned=True)
