"""Slot mappings and block tables as kernels read them, from lists of block numbers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import torch

from trivet.errors import MemoryFault
from trivet.memory.sizes import whole
from trivet.plugins.describe import shown

PADDING: Final = 0  # a block number that exists: a kernel that reads ahead stays inside the cache


def touched(blocks: Sequence[int], start: int, count: int, block_size: int) -> Sequence[int]:
    """The blocks that hold a run of a sequence's tokens.

    Raises:
        MemoryFault: the blocks end before the tokens do, or a number is negative.
    """
    given: tuple[object, object] = start, count
    if not all(isinstance(n, int) for n in given):
        raise MemoryFault(f"{shown(count)} tokens from {shown(start)} on", fix="whole numbers")
    end = start + count
    if start < 0 or count < 0 or end > len(blocks) * block_size:
        raise MemoryFault(
            f"tokens {start} to {end} do not lie in {len(blocks)} blocks of {block_size}",
            fix=f"allocate {max(0, -(-end // block_size))} blocks for this sequence",
        )
    return blocks[start // block_size : -(-end // block_size)] if count else ()


def slots(held: Sequence[int], start: int, count: int, block_size: int) -> torch.Tensor:
    """int64 ``[count]``: where each token of a run lies, of whose blocks ``held`` are the first on.

    Args:
        held: what ``touched`` returned.
        start: position of the first token.
        count: number of tokens.
        block_size: tokens in a block.
    """
    found = array("q")
    end = start + count
    for i, block in enumerate(held, start // block_size):
        low, high = max(start - i * block_size, 0), min(end - i * block_size, block_size)
        found.extend(range(block * block_size + low, block * block_size + high))
    return _tensor(found, torch.int64)


def table(sequences: Sequence[Sequence[int]], max_blocks: int | None) -> torch.Tensor:
    """int32 ``[sequences, max_blocks]``, padded; the longest sequence's number when None.

    Raises:
        MemoryFault: a sequence has more than ``max_blocks`` blocks.
    """
    longest = max(map(len, sequences), default=0)
    width = longest if max_blocks is None else whole(max_blocks, "a table of {} columns")
    if longest > width:
        msg = f"a sequence has {longest} blocks, the table {width} columns"
        raise MemoryFault(msg, fix=f"max_blocks={longest} at least, or a shorter sequence")
    rows = array("i")
    for blocks in sequences:
        rows.extend(blocks)
        rows.extend([PADDING] * (width - len(blocks)))
    return _tensor(rows, torch.int32).view(len(sequences), width)


def _tensor(numbers: array[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor ``[len(numbers)]`` over the same memory: several times faster than a copy."""
    return torch.frombuffer(numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype)
