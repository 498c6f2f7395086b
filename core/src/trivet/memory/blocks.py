"""The pool of KV-cache blocks: block numbers on the host, shared by counting references."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import torch

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory

PADDING: Final = 0  # a block number that exists: a kernel that reads ahead stays inside the cache


class KvBlocks:
    """Numbers of cache blocks, given out and taken back; every call costs O(1) a block.

    The order is deterministic: a new pool gives 0, 1, 2, ...; blocks freed last come back first,
    those of one ``free`` in the order in which they were given. Not thread-safe: an engine's
    scheduler is one thread.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens in a block.
        bytes_per_block: bytes that a block takes over all layers, keys and values; used to report
            exhaustion in bytes.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, bytes_per_block: int | None = None
    ) -> None:
        if num_blocks < 0 or block_size < 1:
            raise MemoryFault(
                f"a pool of {num_blocks} blocks of {block_size} tokens cannot be made"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.bytes_per_block = bytes_per_block
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: its end is given first
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can still give."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def allocate(self, n: int = 1) -> list[int]:
        """Take ``n`` blocks, all or none; each has one reference.

        Raises:
            OutOfMemory: fewer are free; nothing was taken. ``retryable`` unless the whole pool is
                too small. ``requested_bytes`` is 0 when the pool does not know the bytes of a
                block; the text counts blocks.
            MemoryFault: ``n`` is negative.
        """
        if n < 0:
            raise MemoryFault(f"{n} blocks cannot be allocated")
        if n > len(self._free):
            raise self._exhausted(n)
        if n == 0:
            return []
        taken = self._free[-n:]
        del self._free[-n:]
        taken.reverse()
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a block in use: one more ``free`` is needed before it is reused.

        Raises:
            InvalidBuffer: the block is free, or not of this pool.
        """
        if not self.refcount(block):
            raise self._invalid(block)
        self._references[block] += 1

    def refcount(self, block: int) -> int:
        """References to a block; 0 when it is free.

        Raises:
            InvalidBuffer: the block is not of this pool.
        """
        if not self._is_own(block):
            raise self._invalid(block)
        return self._references[block]

    def free(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block; those without any left can be allocated again.

        Raises:
            InvalidBuffer: a block is free already (or is listed more often than it is held), or
                not of this pool; nothing was given up.
        """
        blocks = list(blocks)
        references = self._references
        ended = []
        for i, block in enumerate(blocks):
            if not self._is_own(block) or not references[block]:
                for given_up in blocks[:i]:
                    references[given_up] += 1
                raise self._invalid(block)
            references[block] -= 1
            if not references[block]:
                ended.append(block)
        ended.reverse()
        self._free += ended

    def slots(self, blocks: Sequence[int], start: int, count: int) -> torch.Tensor:
        """Where tokens ``start`` to ``start + count - 1`` of a sequence lie in the cache.

        Args:
            blocks: the sequence's blocks in order.
            start: position of the first token.
            count: number of tokens.

        Returns:
            int64 ``[count]`` on the host: ``block * block_size + offset`` of each token.

        Raises:
            MemoryFault: the blocks end before the tokens do, or a number is negative.
            InvalidBuffer: a block that would be written is free, or not of this pool.
        """
        size, end = self.block_size, start + count
        if start < 0 or count < 0 or end > len(blocks) * size:
            raise MemoryFault(
                f"tokens {start} to {end} do not lie in {len(blocks)} blocks of {size}",
                fix=f"allocate {max(0, self.blocks_for(end))} blocks for this sequence",
            )
        first = start // size
        touched = blocks[first : self.blocks_for(end)] if count else ()
        self._require_held(touched)
        found = array("q")
        for i, block in enumerate(touched, first):
            low, high = max(start - i * size, 0), min(end - i * size, size)
            found.extend(range(block * size + low, block * size + high))
        return _tensor(found, torch.int64)

    def table(
        self, sequences: Sequence[Sequence[int]], *, max_blocks: int | None = None
    ) -> torch.Tensor:
        """The block table of a batch.

        Args:
            sequences: the blocks of each sequence, in order.
            max_blocks: columns; the longest sequence's number when None.

        Returns:
            int32 ``[sequences, max_blocks]`` on the host, padded with block 0.

        Raises:
            MemoryFault: a sequence has more than ``max_blocks`` blocks.
            InvalidBuffer: a block is free, or not of this pool.
        """
        longest = max(map(len, sequences), default=0)
        width = longest if max_blocks is None else max_blocks
        if longest > width:
            raise MemoryFault(f"a sequence has {longest} blocks, the table {width} columns")
        for blocks in sequences:
            self._require_held(blocks)
        rows = array("i")
        for blocks in sequences:
            rows.extend(blocks)
            rows.extend([PADDING] * (width - len(blocks)))
        return _tensor(rows, torch.int32).view(len(sequences), width)

    def _is_own(self, block: int) -> bool:
        # The exact type: True would be block 1 without a word.
        return type(block) is int and 0 <= block < self.num_blocks

    def _require_held(self, blocks: Sequence[int]) -> None:
        # A table of thousands of blocks is checked every step: first without a loop in Python.
        try:
            if not blocks or (min(blocks) >= 0 and all(map(self._references.__getitem__, blocks))):
                return
        except (IndexError, TypeError):
            pass  # the loop finds which
        for block in blocks:
            if not self._is_own(block) or not self._references[block]:
                raise self._invalid(block)

    def _invalid(self, block: object) -> InvalidBuffer:
        if type(block) is int and 0 <= block < self.num_blocks:
            return InvalidBuffer(
                f"block {block} is free",
                fix="each block is freed once for each allocate and share, and not used afterwards",
            )
        return InvalidBuffer(
            f"{block!r} is not a block of this pool: its blocks are the integers 0 to "
            f"{self.num_blocks - 1}",
            fix="pass only numbers that this pool's allocate returned",
        )

    def _exhausted(self, n: int) -> OutOfMemory:
        known = self.bytes_per_block
        return OutOfMemory(
            f"{n} KV blocks were asked for, {self.num_free} of {self.num_blocks} are free",
            requested_bytes=n * (known or 0),
            free_bytes=None if known is None else self.num_free * known,
            limit_bytes=None if known is None else self.num_blocks * known,
            tag="kv_blocks",
            retryable=n <= self.num_blocks,
            fix="finish or preempt a sequence, or make the pool larger",
        )


def _tensor(numbers: array[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor ``[len(numbers)]`` over the same memory: several times faster than a copy."""
    return torch.frombuffer(numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype)
