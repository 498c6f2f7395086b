"""rotary_kv_cache_write: q turns in place, k turns into its slot and v is copied, in one launch."""

# ruff: noqa: ARG001  # the scalars of a site are among its facts

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.contracts import (
    Term,
    between,
    contiguous,
    dtype,
    equal,
    implements,
    one_of,
    rows,
)
from trivet.kernels.triton import Kernel, Variant
from trivet_triton.constants import Constants
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels.kv_cache import refuse_layout
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.rotary import default, is_interleaved, rest, shares, space
from trivet_triton.kernels.rotary_pairs import (
    copy_features,
    read_angles,
    read_pairs,
    turned,
    write_pairs,
)
from trivet_triton.kernels.row_layout import FLOATS, WIDE, named, power_of_two, row_stride
from trivet_triton.kernels.sites import Launches, at_bind


@triton.jit
def _rotate_and_write(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slots: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    capacity: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q_row, k_row = q + token * q_stride, k + token * k_stride
    head = part * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    kv = part * BLOCK_KV + tl.arange(0, BLOCK_KV)
    slot = tl.load(slots + token)
    a, b = read_pairs(q_row, head, HEADS, HEAD_DIM, HALF, BLOCK_HEADS, BLOCK_PAIRS, INTERLEAVED)
    ka, kb = read_pairs(k_row, kv, KV_HEADS, HEAD_DIM, HALF, BLOCK_KV, BLOCK_PAIRS, INTERLEAVED)
    i = tl.arange(0, BLOCK_DIM)[None, :]
    at = kv[:, None] * HEAD_DIM + i
    inside = (kv[:, None] < KV_HEADS) & (i < HEAD_DIM)
    value = tl.load(v + token * v_stride + at, mask=inside, other=0.0)
    c, s = read_angles(cos + token * cos_stride, sin + token * sin_stride, HALF, BLOCK_PAIRS)
    element: tl.constexpr = q.dtype.element_ty
    cached: tl.constexpr = k_cache.dtype.element_ty
    # nothing outside of a cache is ever written, whatever a slot says
    kept = tl.where((slot >= 0) & (slot < capacity), KV_HEADS, 0)
    to = slot * (KV_HEADS * HEAD_DIM)
    there = kv[:, None] < kept
    tl.store(v_cache + to + at, value.to(cached), mask=there & (i < HEAD_DIM))
    x, y = turned(ka, kb, c, s, element)
    x, y = x.to(cached), y.to(cached)
    write_pairs(k_cache + to, kv, there, x, y, HEAD_DIM, HALF, BLOCK_KV, BLOCK_PAIRS, INTERLEAVED)
    if BLOCK_REST > 0:
        copy_features(k_row, k_cache + to, kv, there, 2 * HALF, HEAD_DIM, BLOCK_REST)
    x, y = turned(a, b, c, s, element)
    there = head[:, None] < HEADS
    write_pairs(
        q_row, head, there, x, y, HEAD_DIM, HALF, BLOCK_HEADS, BLOCK_PAIRS, INTERLEAVED
    )  # fmt: skip


_KERNEL: Final = Kernel(
    _rotate_and_write,
    settle=overlap,
    q="*T",
    k="*T",
    v="*T",
    cos="*fp32",
    sin="*fp32",
    k_cache="*C",
    v_cache="*C",
    slots="*i64",
    q_stride="i64",
    k_stride="i64",
    v_stride="i64",
    cos_stride="i64",
    sin_stride="i64",
    capacity="i64",
)

_TUNED: Final = Constants("rotary_kv_cache_write", space=space, default=default)


def _variant(
    elements: tuple[torch.dtype, torch.dtype],
    sizes: tuple[int, int, int, int],
    config: Mapping[str, Any],
    *,
    interleaved: bool,
    aligned: bool,
) -> Variant:
    heads, kv_heads, head_dim, half = sizes
    promised = dict.fromkeys(("q", "k", "v", "cos", "sin", "k_cache", "v_cache"), WIDE)
    strides = ("q_stride", "k_stride", "v_stride")
    promised |= dict.fromkeys(strides, WIDE // elements[0].itemsize)
    promised |= dict.fromkeys(("cos_stride", "sin_stride"), WIDE // 4)
    return _KERNEL.variant(
        {"T": elements[0], "C": elements[1]},
        {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "HALF": half,
            "INTERLEAVED": interleaved,
            **shares(heads, kv_heads, half, config["parts"]),
            "BLOCK_REST": rest(head_dim, half),
            "BLOCK_DIM": power_of_two(head_dim),
        },
        divisible=promised if aligned else {},
        num_warps=config["num_warps"],
    )


@cache
def _launches(
    index: int,
    elements: tuple[torch.dtype, torch.dtype],
    sizes: tuple[int, int, int, int],
    pairing: str,
    aligned: bool,
) -> tuple[tuple[float, int, Any], ...]:
    """``(most tokens, programs a token, launch)``, for rising numbers of tokens."""
    key: dict[str, Any] = dict(zip(("heads", "kv_heads", "head_dim", "half"), sizes, strict=True))
    key |= {"dtype": named(elements[0]), "cache": named(elements[1]), "pairing": pairing}
    made = []
    for limit, config in _TUNED.buckets(arch_at(index), key):
        turned = is_interleaved(pairing, "rotary_kv_cache_write")
        variant = _variant(elements, sizes, config, interleaved=turned, aligned=aligned)
        made.append((limit, config["parts"], variant.on(device_at(index))))
    return tuple(made)


@cache
def _runner(
    element: torch.dtype,
    cached: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    half: int,
    pairing: str,
    layout: str,
    dense: bool | None = None,
    sure: bool = False,
) -> Callable[..., None]:
    """The operator for one kind of call.

    ``dense`` says whether cos and sin are known to be contiguous, None where there was no bind;
    ``sure`` whether every tensor is known to start at a multiple of 16 bytes.
    """
    if layout != "NHD":
        refuse_layout(layout)
    kind = (element, cached), (heads, kv_heads, head_dim, half), pairing
    fast = Launches(lambda index: _launches(index, *kind, True))
    slow = Launches(lambda index: _launches(index, *kind, False))
    size, width = element.itemsize, kv_heads * head_dim
    if dense is not None:
        (slow if (head_dim * size | half * 4) & (WIDE - 1) else fast).at_home()

    def rotary_kv_cache_write(
        q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor,
        k_cache: Tensor, v_cache: Tensor, slots: Tensor,
        pairing: str = "neox", layout: str = "NHD",
    ) -> None:  # fmt: skip
        strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
        if len(strides) == 3:  # tokens, heads, features
            q_stride, k_stride, v_stride = strides[0], k_strides[0], v_strides[0]
        else:
            q_stride, k_stride, v_stride = row_stride(q, 2), row_stride(k, 2), row_stride(v, 2)
        cos_stride = half if dense or cos.is_contiguous() else row_stride(cos, 1)
        sin_stride = half if dense or sin.is_contiguous() else row_stride(sin, 1)
        low = (q_stride | k_stride | v_stride) * size | (cos_stride | sin_stride) << 2
        if not sure:
            low |= (
                q.data_ptr() | k.data_ptr() | v.data_ptr() | cos.data_ptr() | sin.data_ptr()
                | k_cache.data_ptr() | v_cache.data_ptr()
            )  # fmt: skip
        tokens = slots.numel()
        if not tokens:
            return
        for most, parts, launch in (slow if low & 15 else fast)[q.get_device()]:
            if tokens <= most:
                launch(
                    tokens, parts, 1, q, k, v, cos, sin, k_cache, v_cache, slots,
                    q_stride, k_stride, v_stride, cos_stride, sin_stride,
                    k_cache.numel() // width,
                )  # fmt: skip
                return

    return rotary_kv_cache_write


_AT_BIND: Final = at_bind(
    _runner,
    "q.dtype", "k_cache.dtype", "heads", "kv_heads", "head_dim", "rotary_half", "pairing", "layout",
    dense=("cos", "sin"), aligned=("q", "k", "v", "cos", "sin", "k_cache", "v_cache"),
)  # fmt: skip

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("v.dtype", "q.dtype"),
    dtype("k_cache", *FLOATS),
    equal("v_cache.dtype", "k_cache.dtype"),
    between("rotary_half", 1, None),
    rows("q"),
    rows("k"),
    rows("v"),
    rows("cos"),
    rows("sin"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    contiguous("slots"),
    one_of("pairing", "neox", "interleaved"),
    one_of("layout", "NHD"),
]


@implements(
    "rotary_kv_cache_write@1",
    name="triton",
    domain=_DOMAIN,
    sources=(
        "rotary.py",
        "rotary_pairs.py",
        "kv_cache.py",
        "row_layout.py",
        "sites.py",
        "../constants.py",
        "../hardware.py",
    ),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_AT_BIND,
)
def rotary_kv_cache_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    pairing: str = "neox",
    layout: str = "NHD",
) -> None:
    """Rotates and writes; a slot that is not in the cache is left out."""
    shape, cache = q.shape, k_cache.shape
    run = _runner(
        q.dtype, k_cache.dtype, shape[-2], cache[2], cache[3], cos.shape[-1], pairing, layout
    )
    run(q, k, v, cos, sin, k_cache, v_cache, slots)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time."""
    for name, sizes, interleaved in (
        ("neox", (32, 8, 128, 64), False),
        ("interleaved", (32, 8, 128, 64), True),
        ("partial", (32, 32, 80, 16), False),
    ):
        key: dict[str, Any] = dict(
            zip(("heads", "kv_heads", "head_dim", "half"), sizes, strict=True)
        )
        chosen = _TUNED.defaults(arch, key)
        for size, (_, config) in zip(("few", "many"), chosen, strict=True):
            element = torch.bfloat16
            made = _variant((element,) * 2, sizes, config, interleaved=interleaved, aligned=True)
            yield f"rotary_kv_cache/{name}/{size}/bfloat16", made
