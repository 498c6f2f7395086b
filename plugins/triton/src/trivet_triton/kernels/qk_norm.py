"""qk_rms_norm: the heads of q and of k in one launch, in place also on views of one projection."""

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

from trivet.contracts import (
    Term,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    offset_aligned,
    rows,
)
from trivet.errors import DomainError
from trivet.kernels.triton import Kernel, Variant
from trivet.kernels.triton.tuned import Key
from trivet_triton.constants import Constants, lanes_of
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels.norm_kernels import scaled
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.row_layout import FLOATS, named, row_stride
from trivet_triton.kernels.rows import VECTOR, promises
from trivet_triton.kernels.sites import Launches, at_bind

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    dtype("q_weight", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("k_weight.dtype", "q_weight.dtype"),
    rows("q"),
    rows("k"),
    contiguous("q_weight"),
    contiguous("k_weight"),
    between("head_dim", 1, 8192),
]
_ALIGNED: Final[list[Term]] = [
    *_DOMAIN,
    divisible("head_dim", VECTOR),
    rows("q", VECTOR),
    rows("k", VECTOR),
    *(offset_aligned(name, 16) for name in ("q", "k", "q_weight", "k_weight")),
]
"""Where one compiled program serves every token, in one order of additions."""


@triton.jit
def _part(
    x: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    first: tl.tensor,
    tokens: tl.tensor,
    block: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    TOKENS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalises ``SPAN`` heads of each of ``TOKENS`` tokens."""
    line = tl.arange(0, TOKENS * SPAN)[:, None]
    token, head = first + line // SPAN, block * SPAN + line % SPAN
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < DIM
    if HEADS % SPAN != 0:
        inside = inside & (head < HEADS)
    if TOKENS > 1:
        inside = inside & (token < tokens)
    at = head * DIM + col
    # each row reads the weight for itself, in its own layout, and before x: without the barrier
    # the assembler would move this load behind the first use of x
    w = tl.load(weight + line * 0 + col, mask=col < DIM, other=0.0)
    tl.debug_barrier()
    f = tl.load(x + token.to(tl.int64) * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(f * f, 1, keep_dims=True) * (1.0 / DIM)
    r = scaled(f * tl.rsqrt(mean + EPS), w, y.dtype.element_ty, OFFSET, IN_FLOAT32)
    tl.store(y + token.to(tl.int64) * y_stride + at, r, mask=inside)


@triton.jit
def _qk_rms_norm(
    q: tl.tensor,
    k: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    q_out: tl.tensor,
    k_out: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    q_out_stride: tl.tensor,
    k_out_stride: tl.tensor,
    tokens: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    TOKENS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """A program takes some heads of q, or some of k; those of a token follow each other."""
    after_previous(OVERLAP)
    Q_BLOCKS: tl.constexpr = (HEADS + SPAN - 1) // SPAN
    BLOCKS: tl.constexpr = Q_BLOCKS + (KV_HEADS + SPAN - 1) // SPAN
    first = tl.program_id(0) // BLOCKS * TOKENS
    block = tl.program_id(0) % BLOCKS
    if block < Q_BLOCKS:
        _part(
            q, q_weight, q_out, q_stride, q_out_stride, first, tokens, block,
            HEADS, DIM, EPS, OFFSET, IN_FLOAT32, TOKENS, SPAN, BLOCK,
        )  # fmt: skip
    else:
        _part(
            k, k_weight, k_out, k_stride, k_out_stride, first, tokens, block - Q_BLOCKS,
            KV_HEADS, DIM, EPS, OFFSET, IN_FLOAT32, TOKENS, SPAN, BLOCK,
        )  # fmt: skip


KERNEL: Final = Kernel(
    _qk_rms_norm, settle=overlap,
    q="*T", k="*T", q_weight="*W", k_weight="*W", q_out="*T", k_out="*T",
    q_stride="i64", k_stride="i64", q_out_stride="i64", k_out_stride="i64", tokens="i32",
)  # fmt: skip
_POINTERS: Final = "q k q_weight k_weight q_out k_out"
_STRIDES: Final = "q_stride k_stride q_out_stride k_out_stride"


def config(
    dim: int, heads: int, tokens: int, span: int = 8, vectors: int = 1, lanes: int = 32
) -> dict[str, Any]:
    """Some heads of some tokens; a thread always has a whole vector of a row.

    So the lanes of a row, and with them the order of its sum, depend on ``dim`` alone while it fits
    one warp, up to 256 for 32 lanes; longer heads are given 128 threads.
    """
    span, block = min(span, triton.next_power_of_2(heads)), triton.next_power_of_2(dim)
    tokens = max(tokens, lanes * VECTOR // (span * block))
    warps = tokens * span * block // (lanes * VECTOR * vectors)
    warps = min(max(warps, 1), 256 // lanes) if dim <= lanes * VECTOR else 128 // lanes
    if dim > lanes * VECTOR:
        tokens, span = 1, max(1, min(span, 4096 // block))
    made = {"TOKENS": tokens, "SPAN": span, "BLOCK": block}
    return made | {"num_warps": warps, "num_stages": 1}


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, Any]], ...]:
    """One token a program where there are few, two where there are many."""
    dim, heads, lanes = int(key["head_dim"]), int(key["heads"]), lanes_of(key)
    few, many = config(dim, heads, 1, lanes=lanes), config(dim, heads, 2, vectors=2, lanes=lanes)
    return (128, few), (inf, many)


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    """What is worth measuring for a number of tokens."""
    dim, heads, lanes, seen = int(key["head_dim"]), int(key["heads"]), lanes_of(key), []
    for tokens in (1, 2, 4) if rows > 64 else (1,):
        for span in (2, 4, 8, 16):
            for vectors in (1, 2):
                made = config(dim, heads, tokens, span, vectors, lanes)
                if made not in seen and made["TOKENS"] * made["SPAN"] * made["BLOCK"] <= 8192:
                    seen.append(made)
    yield from seen


TUNED: Final = Constants("qk_rms_norm", space=space, default=default, wide=True)

Arm = tuple[float, int, int, Callable[..., None]]
"""The most tokens it is for, tokens a program, programs for these, and the launch."""


def variant(
    q: torch.dtype, weight: torch.dtype, aligned: bool, given: Mapping[str, Any]
) -> Variant:
    """The kernel with its constants and options, told apart by their case."""
    return KERNEL.variant(
        {"T": q, "W": weight},
        {n: v for n, v in given.items() if n.isupper()},
        divisible=promises(_POINTERS, _STRIDES, aligned=aligned),
        **{n: v for n, v in given.items() if not n.isupper()},
    )


@cache
def _arms(
    q: torch.dtype,
    weight: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    aligned: bool,
    index: int,
    eps: float,
    weight_offset: float,
    weight_in_float32: bool,
) -> tuple[Arm, ...]:
    """The launches of one kind of call, by number of tokens."""
    fixed = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "EPS": float(eps),
        "OFFSET": float(weight_offset),
        "IN_FLOAT32": bool(weight_in_float32),
    }
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim}
    found = []
    key: Key = {"dtype": named(q), "weight": named(weight), **sizes}
    for most, chosen in TUNED.buckets(arch_at(index), key):
        made = variant(q, weight, aligned, {**fixed, **chosen}).on(device_at(index))
        blocks = -(-heads // chosen["SPAN"]) + -(-kv_heads // chosen["SPAN"])
        found.append((most, int(chosen["TOKENS"]), blocks, made))
    return tuple(found)


@cache
def _runner(
    inplace: bool, q_dtype: torch.dtype, weight_dtype: torch.dtype, heads: int, kv_heads: int,
    dim: int, eps: float, weight_offset: float, weight_in_float32: bool, bound: bool | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The operator for one kind of call; no heads of k where there is none.

    ``bound`` is None where there was no bind.
    """
    sizes = (q_dtype, weight_dtype, heads, kv_heads, dim)
    scalars = (eps, weight_offset, weight_in_float32)
    fast = Launches(lambda index: _arms(*sizes, True, index, *scalars))
    slow = Launches(lambda index: _arms(*sizes, False, index, *scalars))
    if bound is not None:
        (slow if dim % VECTOR else fast).at_home()
    features, width, k_width = dim << 1, heads * dim, (kv_heads or heads) * dim

    def qk_rms_norm(
        q: Tensor, k: Tensor | None, q_weight: Tensor, k_weight: Tensor | None,
        eps: float = 1e-6, weight_offset: float = 0.0, weight_in_float32: bool = False,
    ) -> Any:  # fmt: skip
        if k is None or k_weight is None:
            if k is not k_weight:
                msg = "qk_rms_norm: k and k_weight are given together or not at all"
                raise DomainError(msg, fix="pass both, or neither")
            if kv_heads:  # at a site with k
                run = _runner(inplace, q_dtype, weight_dtype, heads, 0, dim, *scalars)
                return run(q, k, q_weight, k_weight)
            outs = None if inplace else [empty_like(q)]
            k, k_weight = q, q_weight
        else:
            outs = None if inplace else [empty_like(q), empty_like(k)]
        q_strides, k_strides = q.stride(), k.stride()
        q_stride = q_strides[0] if len(q_strides) == 3 else row_stride(q, 2)
        k_stride = k_strides[0] if len(k_strides) == 3 else row_stride(k, 2)
        low = (
            q.data_ptr() | k.data_ptr() | q_weight.data_ptr() | k_weight.data_ptr()
            | (q_stride | k_stride) << 1 | features
        )  # fmt: skip
        q_out, k_out, q_to, k_to = q, k, q_stride, k_stride
        if outs is not None:
            q_out, k_out, q_to, k_to = outs[0], outs[-1], width, k_width
        if count := q.numel() // width:
            for most, each, blocks, launch in (slow if low & 15 else fast)[q.get_device()]:
                if count <= most:
                    launch(
                        -(-count // each) * blocks, 1, 1,
                        q, k, q_weight, k_weight, q_out, k_out,
                        q_stride, k_stride, q_to, k_to, count,
                    )  # fmt: skip
                    break
        return outs

    return qk_rms_norm


_PATHS: Final = (
    "q.dtype", "q_weight.dtype", "heads", "kv_heads", "head_dim",
    "eps", "weight_offset", "weight_in_float32",
)  # fmt: skip
_FRESH, _INPLACE = (at_bind(partial(_runner, inplace), *_PATHS) for inplace in (False, True))


@implements(
    "qk_rms_norm@1",
    name="triton_aligned",
    domain=_ALIGNED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_FRESH,
)
@implements(
    "qk_rms_norm@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_FRESH,
)
def qk_rms_norm(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> list[Tensor]:
    """Normalises heads into fresh tensors."""
    shape, kv_heads = q.shape, 0 if k is None else k.shape[-2]
    run = _runner(
        False, q.dtype, q_weight.dtype, shape[-2], kv_heads, shape[-1],
        eps, weight_offset, weight_in_float32,
    )  # fmt: skip
    normed: list[Tensor] = run(q, k, q_weight, k_weight)
    return normed


@implements(
    "qk_rms_norm_@1",
    name="triton_aligned",
    domain=_ALIGNED,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_INPLACE,
)
@implements(
    "qk_rms_norm_@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=_INPLACE,
)
def qk_rms_norm_(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> None:
    """Normalises the heads of ``q`` and ``k`` in place."""
    shape, kv_heads = q.shape, 0 if k is None else k.shape[-2]
    run = _runner(
        True, q.dtype, q_weight.dtype, shape[-2], kv_heads, shape[-1],
        eps, weight_offset, weight_in_float32,
    )  # fmt: skip
    run(q, k, q_weight, k_weight)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for compilation ahead of time."""
    for heads, kv_heads, dim in ((32, 8, 128), (16, 2, 256), (9, 3, 64)):
        fixed = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "EPS": 1e-6}
        fixed |= {"OFFSET": 0.0, "IN_FLOAT32": False}
        for most, chosen in TUNED.defaults(arch, {"heads": heads, "head_dim": dim}):
            made = variant(torch.bfloat16, torch.bfloat16, aligned=True, given={**fixed, **chosen})
            yield f"qk_rms_norm-{heads}x{dim}-{most}", made
