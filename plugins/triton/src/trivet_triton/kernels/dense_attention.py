"""attention over dense keys and values: encoders, cross attention, bridges to other frameworks.

Tensors may lie as they like, as long as the features of a head lie together: batch, tokens and
heads each have a stride, and a mask has one of 0 where it is broadcast. Where everything starts at
16 bytes, so do loads. A call is one launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from trivet.contracts import Term, between, dtype, equal, implements
from trivet.errors import DomainError
from trivet.kernels.triton import Variant
from trivet_triton.constants import Constants, compiler_options
from trivet_triton.hardware import arch_at, device_at, shared_kib
from trivet_triton.kernels import attention_host as host
from trivet_triton.kernels.dense_attention_kernel import (
    DENSE,
    NO_MASK,
    ROW_MASK,
    TILE_MASK,
)
from trivet_triton.kernels.row_layout import FLOATS, named, power_of_two

_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_MASKS: Final = (torch.bool, *_DTYPES)
_LEAST_WIDTH: Final = 16
"""Features that a product of tiles has at least."""
_USED: Final = 7 / 8
"""Share of a tile's rows that a group of heads fills at least."""
_NOTHING: Final = (0, 0, 0)
_STEPS: Final = (
    "q_batch", "q_query", "q_head", "k_batch", "k_key", "k_head", "v_batch", "v_key", "v_head",
)  # fmt: skip
_MASK_STEPS: Final = ("mask_batch", "mask_head", "mask_query", "mask_keys")

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("v.dtype", "q.dtype"),
    between("head_dim", 1, host.WIDEST),
    between("value_dim", 1, host.WIDEST),
]


class Shape(NamedTuple):
    """What variants of the kernel are made for, besides sizes of tiles."""

    ordinal: int
    """Of the device; -1 where programs are interpreted."""
    dtype: torch.dtype
    kv_heads: int
    group: int
    head_dim: int
    value_dim: int
    causal: bool = False
    windowed: bool = False
    capped: bool = False
    scaled: bool = False
    """Whether scores are multiplied before the maximum is taken: ``outer`` enters."""
    mask: int = NO_MASK
    mask_dtype: torch.dtype = torch.bool
    aligned: bool = True
    """Whether rows of q, k and v start at multiples of 16 bytes."""

    def key(self, arch: str) -> dict[str, str | int]:
        """What tables of tuned constants go by."""
        return {
            "dtype": named(self.dtype),
            "head_dim": max(self.head_dim, self.value_dim),
            "mask": self.mask,
            "shared": shared_kib(arch),
        }


def pieces(group: int, rows: int) -> tuple[int, int]:
    """How a group is cut into tiles of so many rows: (pieces, heads of each); few rows idle."""
    for count in range(1, group):
        pack = -(-group // count)
        if pack <= rows and rows // pack * pack * group >= _USED * rows * pack * count:
            return count, pack
    return group, 1


def space(key: Mapping[str, Any], rows: int) -> Iterator[dict[str, int]]:
    """Configs worth measuring."""
    for block_m, warps in ((16, 4), (32, 4), (64, 4), (64, 8), (128, 4), (128, 8)):
        if block_m >= 4 * rows and block_m > _LEAST_WIDTH:
            continue
        for block_n in (32, 64, 128):
            for stages in (2, 3, 4):
                tile = host.row_bytes(key) * (2 * (stages - 1) * block_n + block_m)
                if tile >> 10 <= key["shared"]:
                    yield {
                        "BLOCK_M": block_m,
                        "BLOCK_N": block_n,
                        "num_warps": warps,
                        "num_stages": stages,
                    }


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """Tiles of 128 rows for many queries of a key head, of 64 and 16 for few; smaller float32."""
    shared, masked, wide = key["shared"], key["mask"] != NO_MASK, key["head_dim"] > 128
    if key["dtype"] == "float32":
        low = wide and shared == host.NO_WGMMA
        small = {"BLOCK_M": 16 if low else 32, "BLOCK_N": 16, "num_warps": 4 if low else 8}
        if masked:
            small |= {"num_warps": 8, "maxnreg": host.ALL_REGISTERS}
        return ((inf, {**small, "num_stages": 2}),)
    config = {
        "BLOCK_N": 64 if shared > host.NO_WGMMA and not wide else 32,
        "num_stages": 3 if shared > 99 or not wide else 2,
    }
    least = {**config, "BLOCK_M": 16, "num_warps": 4}
    if wide:
        most = {**config, "BLOCK_M": 64, "num_warps": 8, "maxnreg": host.ALL_REGISTERS}
        return ((16, least), (inf, most))
    few = {**config, "BLOCK_M": 64, "num_warps": 4}
    if masked:  # its entries need registers, too
        few["BLOCK_N"] = 32
        if shared <= host.NO_WGMMA and key["head_dim"] > 64:
            few["num_warps"] = 8
    return ((16, least), (256, few), (inf, {**config, "BLOCK_M": 128, "num_warps": 8}))


TUNED = Constants("attention", space=space, default=default)


def variant_of(shape: Shape, config: Mapping[str, int]) -> Variant:
    """The kernel for tiles of a size."""
    rows = config["BLOCK_M"]
    count, pack = pieces(shape.group, rows)
    unit = 16 // shape.dtype.itemsize
    promises = {"out": 16}
    if shape.aligned:
        promises |= {**dict.fromkeys("qkv", 16), **dict.fromkeys(_STEPS, unit)}
    if shape.mask == TILE_MASK:
        unit = 16 // shape.mask_dtype.itemsize
        promises |= {"mask": 16, **dict.fromkeys(_MASK_STEPS, unit)}
    return DENSE.variant(
        {"T": shape.dtype, "M": shape.mask_dtype if shape.mask else shape.dtype},
        {
            "KV_HEADS": shape.kv_heads,
            "GROUP": shape.group,
            "PACK": pack,
            "PIECES": count,
            "HEAD_DIM": shape.head_dim,
            "WIDTH": max(power_of_two(shape.head_dim), _LEAST_WIDTH),
            "VALUE_DIM": shape.value_dim,
            "VALUE_WIDTH": max(power_of_two(shape.value_dim), _LEAST_WIDTH),
            "BLOCK_M": rows,
            "BLOCK_Q": rows // pack,
            "BLOCK_N": config["BLOCK_N"],
            "CAUSAL": shape.causal,
            "WINDOWED": shape.windowed,
            "CAPPED": shape.capped,
            "SCALED": shape.scaled,
            "MASK": shape.mask,
            "PRECISE": shape.dtype is torch.float32,
        },
        divisible=promises,
        **compiler_options(config),
    )


@cache
def _launches(shape: Shape) -> tuple[tuple[float, Any, int, int], ...]:
    """By rows of a key head: the launch, queries of a tile, tiles of so many queries."""
    arch, made = arch_at(shape.ordinal), []
    for most, config in TUNED.buckets(arch, shape.key(arch)):
        count, pack = pieces(shape.group, config["BLOCK_M"])
        launch = variant_of(shape, config).on(device_at(shape.ordinal))
        made.append((most, launch, config["BLOCK_M"] // pack, count * shape.kv_heads))
    return tuple(made)


def _refuse(what: str, fix: str = "call it through a bind, which keeps to the domain") -> NoReturn:
    msg = f"attention: {what}"
    raise DomainError(msg, operator="attention", fix=fix)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Verifies what addresses depend on.

    Raises:
        DomainError: a tensor is outside of the domain, or they do not fit together.
    """
    shape, dims, widths = q.shape, k.shape, v.shape
    if not len(shape) == len(dims) == len(widths) == 4:
        _refuse(f"q, k, v have {len(shape)}, {len(dims)}, {len(widths)} dims, not 4")
    if q.dtype not in _DTYPES or not q.dtype == k.dtype == v.dtype:
        _refuse(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, not one floating type")
    if dims[0] != shape[0] or dims[3] != shape[3] or widths[:3] != dims[:3]:
        _refuse(f"shapes {list(shape)}, {list(dims)}, {list(widths)} do not fit together")
    if dims[2] < 1 or shape[2] % dims[2]:
        _refuse(f"k has {dims[2]} heads, q has {shape[2]}", "kv_heads must divide heads")
    if not (0 < dims[3] <= host.WIDEST and 0 < widths[3] <= host.WIDEST):
        _refuse(f"heads have {dims[3]} features, values {widths[3]}")
    if k.device != q.device or v.device != q.device:
        _refuse(f"the arguments are not all on {q.device}")


def _check_mask(mask: Tensor, q: Tensor, keys: int) -> None:
    """Verifies what addresses of a mask depend on.

    Raises:
        DomainError: it does not fit the call.
    """
    (batch, queries, heads, _), shape = q.shape, mask.shape
    if len(shape) != 4 or shape[3] != keys:
        _refuse(f"mask has shape {list(shape)}, there are {keys} keys")
    if any(n not in (1, m) for n, m in zip(shape, (batch, heads, queries), strict=False)):
        what = f"mask has shape {list(shape)}, q {list(q.shape)}"
        _refuse(what, "its dims batch, heads and queries are those of the call or 1")
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        _refuse(f"mask is {mask.dtype}", "bool (True: may be seen) or floating numbers to add")
    if mask.device != q.device:
        _refuse(f"the arguments are not all on {q.device}")


def _dense_heads(t: Tensor) -> Tensor:
    """The tensor with the features of a head side by side; nothing else need be."""
    return t if t.stride(3) == 1 or t.shape[3] == 1 else t.contiguous()


def _steps(t: Tensor) -> tuple[int, int, int]:
    """Strides of the first three dims, 0 of those that have one element."""
    (a, b, c, _), (batch, tokens, heads, _) = t.stride(), t.shape
    return a if batch > 1 else 0, b if tokens > 1 else 0, c if heads > 1 else 0


def _bits(steps: tuple[int, ...], size: int) -> int:
    """The bits that are set in strides as bytes."""
    found = 0
    for step in steps:
        found |= step
    return found * size


def _laid(mask: Tensor) -> tuple[int, Tensor, tuple[int, int, int]]:
    """How the kernel reads a mask, the mask as it does, and its strides.

    Tiles of it are read 16 bytes a thread, or their addresses alone would fill the registers: one
    whose rows do not start and end at 16 bytes is copied first, without what is broadcast.
    """
    if mask.dtype not in _MASKS:
        mask = mask.float()
    mask = _dense_heads(mask)
    steps = _steps(mask)
    if not steps[1] and not steps[2]:
        return ROW_MASK, mask, steps
    size, keys = mask.itemsize, mask.shape[3]
    if (mask.data_ptr() | _bits((*steps, keys), size)) & 15:
        for i in range(3):
            mask = mask if steps[i] else mask.narrow(i, 0, 1)
        mask = functional.pad(mask, (0, -keys % (16 // size)))
        steps = _steps(mask)
    return TILE_MASK, mask, steps


def _scales(scale: float, soft_cap: float, mask: Tensor | None) -> tuple[bool, float, float, float]:
    """Whether scores are multiplied before the maximum is taken, and what multiplies when.

    A mask is added in units of 1; a factor of the exponent must be positive, for the kernel takes
    the largest product for the largest score.
    """
    inner, outer = (scale / soft_cap, soft_cap) if soft_cap else (1.0, scale)
    scaled = not outer > 0 or (mask is not None and mask.dtype is not torch.bool)
    return scaled, inner, outer, host.LOG2E * (1.0 if scaled else outer)


@implements(
    "attention@1",
    name="triton",
    domain=_DOMAIN,
    graph_safe=True,
    deterministic=True,
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
    """Attends into a fresh tensor."""
    _check(q, k, v)
    (batch, queries, heads, head_dim), (_, keys, kv_heads, value_dim) = q.shape, v.shape
    if window < 0 or soft_cap < 0:
        _refuse(f"window is {window}, soft_cap is {soft_cap}", "0 means none")
    if mask is not None:
        _check_mask(mask, q, keys)
    out = torch.empty((batch, queries, heads, value_dim), dtype=q.dtype, device=q.device)
    if not keys or not out.numel():
        return out.zero_()
    q, k, v = _dense_heads(q), _dense_heads(k), _dense_heads(v)
    kind, laid, lines = (NO_MASK, q, _NOTHING) if mask is None else _laid(mask)
    if window >= max(queries, keys):  # it hides nothing
        window = 0
    scaled, *factors = _scales(scale, soft_cap, mask)
    steps = (*_steps(q), *_steps(k), *_steps(v))
    low = q.data_ptr() | k.data_ptr() | v.data_ptr() | _bits(steps, q.itemsize)
    shape = Shape(
        q.get_device(), q.dtype, kv_heads, heads // kv_heads, head_dim, value_dim, causal,
        window > 0, soft_cap > 0, scaled, kind, laid.dtype, not low & 15,
    )  # fmt: skip
    rows = queries * shape.group
    for most, launch, tile, shares in _launches(shape):  # noqa: B007  # the last one has no limit
        if rows <= most:
            break
    tiles = -(-queries // tile)
    launch(
        tiles * shares * batch, 1, 1, q, k, v, laid, out, *steps, *lines, laid.shape[3], queries,
        keys, tiles, window, *factors,
    )  # fmt: skip
    return out


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for checks ahead of time."""
    half, brain, whole = torch.float16, torch.bfloat16, torch.float32
    for element, group, head_dim, value_dim, more in (
        (brain, 1, 64, 64, {}),
        (brain, 4, 128, 128, {"causal": True}),
        (brain, 1, 80, 80, {"mask": ROW_MASK}),
        (half, 1, 64, 64, {"mask": TILE_MASK}),
        (half, 1, 128, 128, {"mask": TILE_MASK, "mask_dtype": half, "scaled": True}),
        (brain, 8, 128, 128, {"mask": TILE_MASK, "causal": True}),
        (brain, 2, 256, 256, {"causal": True, "windowed": True, "capped": True}),
        (brain, 1, 192, 128, {"causal": True}),
        (whole, 1, 64, 64, {"mask": ROW_MASK}),
        (whole, 4, 128, 128, {"causal": True}),
        (whole, 1, 256, 256, {"mask": TILE_MASK, "mask_dtype": whole, "scaled": True}),
    ):
        shape = Shape(0, element, 8, group, head_dim, value_dim, **more)
        words = ("", "/row", "/tile")[shape.mask] + "/causal" * shape.causal
        name = f"dense/{named(element)}/{head_dim}/{group}{words}"
        for _, config in TUNED.defaults(arch, shape.key(arch)):
            yield f"{name}/{config['BLOCK_M']}", variant_of(shape, config)
