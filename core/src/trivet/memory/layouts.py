"""How the blocks of a KV cache lie in a tensor, and copies between caches that differ in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from trivet.errors import MemoryFault
from trivet.plugins.describe import shown

__all__ = ["BlockLayout", "Order", "copy_blocks"]


class Order(StrEnum):
    """Which dimension of a block comes first: N tokens, H heads, D numbers of a head."""

    NHD = "NHD"
    HND = "HND"


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """One cache tensor: ``[blocks, block_size, heads, head_dim]``, or heads before tokens.

    Args:
        block_size: tokens in a block.
        heads: heads of keys or values.
        head_dim: numbers of a head.
        dtype: of the numbers.
        order: which comes first.
        scale: what a stored number is multiplied with to give its value.
    """

    block_size: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    order: Order = Order.NHD
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int, int]:
        """The dims of one block as they lie in memory."""
        tokens, heads = self.block_size, self.heads
        first = (tokens, heads) if self.order is Order.NHD else (heads, tokens)
        return (*first, self.head_dim)

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.heads * self.head_dim * self.dtype.itemsize


def copy_blocks(
    source: torch.Tensor,
    source_layout: BlockLayout,
    source_blocks: Sequence[int],
    target: torch.Tensor,
    target_layout: BlockLayout,
    target_blocks: Sequence[int],
) -> None:
    """Copies blocks of one cache into blocks of another one, in one gather and one scatter.

    Where layouts differ, tokens and heads change places and numbers are cast: in float32 where a
    scale is not 1, and held to the range of a target that cannot say infinity. The narrower form
    is what travels between devices.

    Args:
        source: ``[blocks, *source_layout.shape]``.
        source_layout: how its blocks lie.
        source_blocks: which ones.
        target: ``[blocks, *target_layout.shape]``, on any device; only those blocks are written.
        target_layout: how its blocks lie.
        target_blocks: as many, each one once.

    Raises:
        MemoryFault: tensors, layouts and blocks do not fit one another; nothing was written.
    """
    _refuse(source, source_layout, source_blocks, "source")
    _refuse(target, target_layout, target_blocks, "target")
    sizes = [(x.block_size, x.heads, x.head_dim) for x in (source_layout, target_layout)]
    if sizes[0] != sizes[1] or len(source_blocks) != len(target_blocks):
        msg = (
            f"{len(source_blocks)} blocks of {sizes[0]} do not fill {len(target_blocks)} of "
            f"{sizes[1]} (tokens, heads, numbers)"
        )
        raise MemoryFault(msg, fix="copy between blocks of one size, as many as there are targets")
    if len(set(target_blocks)) != len(target_blocks):
        raise MemoryFault("a target block is listed twice", fix="each target once")
    index = torch.tensor(list(source_blocks), dtype=torch.int64, device=source.device)
    found = source.index_select(0, index)
    narrows = target_layout.dtype.itemsize < source_layout.dtype.itemsize
    if narrows:
        found = _cast(found, source_layout, target_layout)
    found = found.to(target.device)
    if not narrows:
        found = _cast(found, source_layout, target_layout)
    if source_layout.order is not target_layout.order:
        found = found.transpose(1, 2)
    target[torch.tensor(list(target_blocks), dtype=torch.int64, device=target.device)] = found


def _cast(found: torch.Tensor, source: BlockLayout, target: BlockLayout) -> torch.Tensor:
    if source.dtype == target.dtype and source.scale == target.scale:
        return found
    values = found
    if source.scale != target.scale:
        values = found.float() * (source.scale / target.scale)
    if not target.dtype.is_floating_point:
        limits = torch.iinfo(target.dtype)
        values = values.float().round().clamp(limits.min, limits.max)
    elif target.dtype.itemsize == 1:
        reach = torch.finfo(target.dtype).max
        values = values.float().clamp(-reach, reach)
    return values.to(target.dtype)


def _refuse(cache: torch.Tensor, layout: BlockLayout, blocks: Sequence[int], role: str) -> None:
    if not (math.isfinite(layout.scale) and layout.scale):
        msg = f"the scale of the {role} is {layout.scale}"
        raise MemoryFault(msg, fix="a number that is neither 0 nor infinite")
    fits = cache.dtype == layout.dtype and cache.shape[1:] == layout.shape
    if not fits:
        msg = (
            f"the {role} is {cache.dtype} {list(cache.shape)}, its layout says {layout.dtype} "
            f"[blocks, {', '.join(map(str, layout.shape))}]"
        )
        raise MemoryFault(msg, fix="pass the layout that the cache was made in")
    outside = [b for b in blocks if type(b) is not int or not 0 <= b < cache.shape[0]]
    if outside:
        msg = f"blocks {shown(outside[:5])} are not in the {role}, which has {cache.shape[0]}"
        raise MemoryFault(msg, fix="pass numbers of that cache's pool")
