"""rotary_embedding: one launch for q and k, in place also on split views of a packed projection.

A program turns a share of the heads of q and of k of one token. It reads everything before it
writes anything, so that one token costs one round trip to memory however many heads it has.
"""

# ruff: noqa: ARG001  # the scalars of a site are among its facts

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from math import inf
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor, empty_like

from trivet.contracts import Term, between, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet.kernels.triton import Kernel, Variant
from trivet_triton.constants import Constants
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels.overlap import after_previous, overlap
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
def _rotate(
    q: tl.tensor,
    k: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_out: tl.tensor,
    k_out: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    q_out_stride: tl.tensor,
    k_out_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q_row, q_to = q + token * q_stride, q_out + token * q_out_stride
    k_row, k_to = k + token * k_stride, k_out + token * k_out_stride
    head = part * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    kv = part * BLOCK_KV + tl.arange(0, BLOCK_KV)
    a, b = read_pairs(q_row, head, HEADS, HEAD_DIM, HALF, BLOCK_HEADS, BLOCK_PAIRS, INTERLEAVED)
    ka, kb = a, b
    if KV_HEADS > 0:
        ka, kb = read_pairs(k_row, kv, KV_HEADS, HEAD_DIM, HALF, BLOCK_KV, BLOCK_PAIRS, INTERLEAVED)
    c, s = read_angles(cos + token * cos_stride, sin + token * sin_stride, HALF, BLOCK_PAIRS)
    element: tl.constexpr = q.dtype.element_ty
    if KV_HEADS > 0:
        x, y = turned(ka, kb, c, s, element)
        there = kv[:, None] < KV_HEADS
        write_pairs(k_to, kv, there, x, y, HEAD_DIM, HALF, BLOCK_KV, BLOCK_PAIRS, INTERLEAVED)
        if BLOCK_REST > 0:
            copy_features(k_row, k_to, kv, there, 2 * HALF, HEAD_DIM, BLOCK_REST)
    x, y = turned(a, b, c, s, element)
    there = head[:, None] < HEADS
    write_pairs(q_to, head, there, x, y, HEAD_DIM, HALF, BLOCK_HEADS, BLOCK_PAIRS, INTERLEAVED)
    if BLOCK_REST > 0:
        copy_features(q_row, q_to, head, there, 2 * HALF, HEAD_DIM, BLOCK_REST)


_KERNEL: Final = Kernel(
    _rotate,
    settle=overlap,
    q="*T",
    k="*T",
    cos="*fp32",
    sin="*fp32",
    q_out="*T",
    k_out="*T",
    q_stride="i64",
    k_stride="i64",
    cos_stride="i64",
    sin_stride="i64",
    q_out_stride="i64",
    k_out_stride="i64",
)

_FEW_TOKENS: Final = 64
_MOST_IN_A_TILE: Final = 4096


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, int]]:
    """Shares of the heads, and warps for each."""
    del rows
    for parts in (1, 2, 4, 8):
        if parts <= power_of_two(key["heads"]):
            for warps in (1, 2, 4, 8):
                yield {"parts": parts, "num_warps": warps}


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """Few tokens spread over more programs; many take one program each, unless it grew large."""
    heads, pairs = power_of_two(key["heads"]), power_of_two(key["half"])
    least = max(1, heads * pairs // _MOST_IN_A_TILE)
    few = max(least, min(heads, heads * pairs // 512))
    return (
        (_FEW_TOKENS, {"parts": few, "num_warps": 1}),
        (inf, {"parts": least, "num_warps": 2}),
    )


_TUNED: Final = Constants("rotary_embedding", space=space, default=default)


def shares(heads: int, kv_heads: int, half: int, parts: int) -> dict[str, int]:
    """Sizes of the tiles of one of so many programs a token."""
    return {
        "BLOCK_HEADS": power_of_two(-(-heads // parts)),
        "BLOCK_KV": power_of_two(-(-kv_heads // parts)),
        "BLOCK_PAIRS": power_of_two(half),
    }


def rest(head_dim: int, half: int) -> int:
    """Size of the tile of what is not turned; 0 for nothing."""
    return power_of_two(head_dim - 2 * half) if head_dim > 2 * half else 0


def _variant(
    element: torch.dtype,
    sizes: tuple[int, int, int, int],
    config: Mapping[str, Any],
    *,
    interleaved: bool,
    inplace: bool,
    aligned: bool,
) -> Variant:
    heads, kv_heads, head_dim, half = sizes
    promised = dict.fromkeys(("q", "k", "cos", "sin", "q_out", "k_out"), WIDE)
    strides = ("q_stride", "k_stride", "q_out_stride", "k_out_stride")
    promised |= dict.fromkeys(strides, WIDE // element.itemsize)
    promised |= dict.fromkeys(("cos_stride", "sin_stride"), WIDE // 4)
    return _KERNEL.variant(
        {"T": element},
        {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "HALF": half,
            "INTERLEAVED": interleaved,
            **shares(heads, kv_heads, half, config["parts"]),
            "BLOCK_REST": 0 if inplace else rest(head_dim, half),
        },
        divisible=promised if aligned else {},
        num_warps=config["num_warps"],
    )


@cache
def _launches(
    index: int,
    element: torch.dtype,
    sizes: tuple[int, int, int, int],
    pairing: str,
    inplace: bool,
    aligned: bool,
) -> tuple[tuple[float, int, Any], ...]:
    """``(most tokens, programs a token, launch)``, for rising numbers of tokens."""
    key: dict[str, Any] = dict(zip(("heads", "kv_heads", "head_dim", "half"), sizes, strict=True))
    key |= {"dtype": named(element), "pairing": pairing, "inplace": inplace}
    made = []
    for limit, config in _TUNED.buckets(arch_at(index), key):
        variant = _variant(
            element,
            sizes,
            config,
            interleaved=is_interleaved(pairing),
            inplace=inplace,
            aligned=aligned,
        )
        made.append((limit, config["parts"], variant.on(device_at(index))))
    return tuple(made)


def is_interleaved(pairing: str, name: str = "rotary_embedding") -> bool:
    """Whether neighbours turn together.

    Raises:
        DomainError: no kernel knows this pairing.
    """
    if pairing not in {"neox", "interleaved"}:
        msg = f"{name}: pairing is {pairing!r}"
        raise DomainError(msg, fix="use 'neox' or 'interleaved'")
    return pairing == "interleaved"


@cache
def _runner(
    inplace: bool,
    element: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    half: int,
    pairing: str,
    dense: bool | None = None,
    sure: bool = False,
) -> Callable[..., Any]:
    """The operator for one kind of call; no heads of k where there is none.

    ``dense`` says whether cos and sin are known to be contiguous, None where there was no bind;
    ``sure`` whether every tensor is known to start at a multiple of 16 bytes.
    """
    sizes, turning = (heads, kv_heads, head_dim, half), pairing
    fast = Launches(lambda index: _launches(index, element, sizes, turning, inplace, True))
    slow = Launches(lambda index: _launches(index, element, sizes, turning, inplace, False))
    size, width, k_width = element.itemsize, heads * head_dim, kv_heads * head_dim
    if dense is not None:
        (slow if (head_dim * size | half * 4) & (WIDE - 1) else fast).at_home()
    written = 0 if inplace else (width | k_width) * size

    def rotary_embedding(
        q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
    ) -> Any:
        out = None
        if k is None:
            if kv_heads:  # at a site with k
                return _runner(inplace, element, heads, 0, head_dim, half, turning)(q, k, cos, sin)
            out, k = None if inplace else [empty_like(q)], q
        elif not inplace:
            out = [empty_like(q), empty_like(k)]
        q_strides, k_strides = q.stride(), k.stride()
        if len(q_strides) == 3:  # tokens, heads, features
            q_stride, k_stride = q_strides[0], k_strides[0]
        else:
            q_stride, k_stride = row_stride(q, 2), row_stride(k, 2)
        cos_stride = half if dense or cos.is_contiguous() else row_stride(cos, 1)
        sin_stride = half if dense or sin.is_contiguous() else row_stride(sin, 1)
        low = written | (q_stride | k_stride) * size | (cos_stride | sin_stride) << 2
        if not sure:
            low |= q.data_ptr() | k.data_ptr() | cos.data_ptr() | sin.data_ptr()
        q_out, k_out, q_to, k_to = q, k, q_stride, k_stride
        if out is not None:
            q_out, k_out, q_to, k_to = out[0], out[-1], width, k_width
        tokens = cos.numel() // half
        if tokens:
            for most, parts, launch in (slow if low & 15 else fast)[q.get_device()]:
                if tokens <= most:
                    launch(
                        tokens, parts, 1, q, k, cos, sin, q_out, k_out,
                        q_stride, k_stride, cos_stride, sin_stride, q_to, k_to,
                    )  # fmt: skip
                    break
        return out

    return rotary_embedding


_PATHS: Final = ("q.dtype", "heads", "kv_heads", "head_dim", "rotary_half", "pairing")
_FRESH, _INPLACE = (
    at_bind(
        partial(_runner, inplace), *_PATHS, dense=("cos", "sin"), aligned=("q", "k", "cos", "sin")
    )
    for inplace in (False, True)
)

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    between("rotary_half", 1, None),
    rows("q"),
    rows("k"),
    rows("cos"),
    rows("sin"),
    one_of("pairing", "neox", "interleaved"),
]


@implements(
    "rotary_embedding@1",
    name="triton",
    domain=_DOMAIN,
    sources=("rotary_pairs.py", "row_layout.py", "sites.py", "../constants.py", "../hardware.py"),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_FRESH,
)
def rotary_embedding(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Rotates into fresh tensors."""
    shape, kv_heads = q.shape, 0 if k is None else k.shape[-2]
    run = _runner(False, q.dtype, shape[-2], kv_heads, shape[-1], cos.shape[-1], pairing)
    turned: list[Tensor] = run(q, k, cos, sin)
    return turned


@implements(
    "rotary_embedding_@1",
    name="triton",
    domain=_DOMAIN,
    sources=("rotary_pairs.py", "row_layout.py", "sites.py", "../constants.py", "../hardware.py"),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_INPLACE,
)
def rotary_embedding_(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> None:
    """Rotates ``q`` and ``k`` in place."""
    shape, kv_heads = q.shape, 0 if k is None else k.shape[-2]
    _runner(True, q.dtype, shape[-2], kv_heads, shape[-1], cos.shape[-1], pairing)(q, k, cos, sin)


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
            for element in (torch.bfloat16, torch.float32):
                made = _variant(
                    element,
                    sizes,
                    config,
                    interleaved=interleaved,
                    inplace=name != "partial",
                    aligned=True,
                )
                yield f"rotary/{name}/{size}/{element}".replace("torch.", ""), made
