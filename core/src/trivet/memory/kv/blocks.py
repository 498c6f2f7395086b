"""The pool of KV-cache blocks: block numbers on the host, shared by counting references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.kv import tables
from trivet.memory.kv.events import Cleared, Event, Removed, Stored
from trivet.memory.kv.keys import Key
from trivet.memory.sizes import whole
from trivet.plugins.describe import shown

_MOST: Final = 1 << 31
"""Blocks of a pool: block tables are int32."""


class KvBlocks:
    """Numbers of cache blocks, given out and taken back; every call costs O(1) a block.

    A block in use has references. One without any is free: either empty, or still *cached*, its
    contents to be found by their key until the block is needed. Empty blocks are given first,
    then cached ones, the one that became free first before the others.

    The order is deterministic: a new pool gives 0, 1, 2, ...; empty blocks freed last come back
    first, those of one ``free`` in the order in which they were given; cached blocks of one
    ``free`` are evicted in the order in which they are listed (list the end of a sequence first).
    Not thread-safe: an engine's scheduler is one thread.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens in a block.
        bytes_per_block: bytes that a block takes over all layers, keys and values; used to report
            exhaustion in bytes.
        on_evict: is told the keys and numbers of cached blocks before somebody else gets them, all
            that one call evicts at once, while their contents are still there: to spill them. It
            must not call the pool. When it raises, nothing was evicted.
        keep_events: whether ``drain_events`` has anything to tell.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        bytes_per_block: int | None = None,
        on_evict: Callable[[Sequence[tuple[Key, int]]], object] | None = None,
        keep_events: bool = False,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size = _sizes(num_blocks, block_size)
        known = bytes_per_block
        self.bytes_per_block = None if known is None else whole(known, "a block of {} bytes")
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: its end is given first
        self._idle: dict[int, None] = {}  # cached and free, in order of eviction
        self._references = [0] * num_blocks
        self._keys: dict[int, Key] = {}
        self._by_key: dict[Key, int] = {}
        self.on_evict = on_evict
        self._events: list[Event] | None = [] if keep_events else None

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can still give, cached ones included."""
        return len(self._empty) + len(self._idle)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by a key, in use or free."""
        return len(self._keys)

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold this many tokens."""
        return -(-whole(tokens, "a sequence of {} tokens") // self.block_size)

    def allocate(self, n: int = 1) -> list[int]:
        """Take ``n`` blocks, all or none; each has one reference and no contents.

        Raises:
            OutOfMemory: fewer are free; nothing was taken. ``retryable`` unless the whole pool is
                too small. ``requested_bytes`` is 0 when the pool does not know the bytes of a
                block; the text counts blocks.
            MemoryFault: ``n`` is no number of 0 or more.
        """
        if type(n) is not int or n < 0:
            n = whole(n, "an allocation of {} blocks")
        short = n - len(self._empty)
        if short > len(self._idle):
            raise _exhausted(self, n)
        if short > 0:
            self._evict(short)
        if n == 0:
            return []
        taken = self._empty[-n:]
        del self._empty[-n:]
        taken.reverse()
        references = self._references
        for block in taken:
            references[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a block in use: one more ``free`` is needed before it is reused.

        Raises:
            InvalidBuffer: the block is free, or not of this pool.
        """
        if not self.refcount(block):
            raise _invalid(self, block)
        self._references[block] += 1

    def refcount(self, block: int) -> int:
        """References to a block; 0 when it is free.

        Raises:
            InvalidBuffer: the block is not of this pool.
        """
        if not self._is_own(block):
            raise _invalid(self, block)
        return self._references[block]

    def free(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block; those without any left can be allocated again.

        Raises:
            InvalidBuffer: a block is free already (or is listed more often than it is held), or
                not of this pool; nothing was given up.
        """
        blocks = list(blocks)
        references, keys = self._references, self._keys
        ended = []
        for i, block in enumerate(blocks):
            if not self._is_own(block) or not references[block]:
                for given_up in blocks[:i]:
                    references[given_up] += 1
                raise _invalid(self, block)
            references[block] -= 1
            if not references[block]:
                ended.append(block)
        self._idle.update((block, None) for block in ended if block in keys)
        self._empty += [block for block in reversed(ended) if block not in keys]

    # --- contents ------------------------------------------------------------------------------

    def publish(self, block: int, key: Key) -> None:
        """Let a block in use be found by its key; its contents are not written any more.

        Where another block has the key already, this one is not cached: both are right, and the
        first one keeps it.

        Raises:
            InvalidBuffer: the block is free, or not of this pool, or has another key.
            MemoryFault: the key is none.
        """
        if not self.refcount(block):
            raise _invalid(self, block)
        if type(key) is not bytes:  # one that hashes or compares oddly would be lost in here
            raise MemoryFault(f"{shown(key)} is no key", fix="bytes, as keys_of gives")
        known = self._keys.get(block)
        if known is not None and known != key:
            msg = f"block {block} is cached under another key"
            raise InvalidBuffer(msg, fix="write into a block of its own: pool.writable(block)")
        if known is None and key not in self._by_key:
            self._keys[block], self._by_key[key] = key, block
            self._tell(Stored(key, block))

    def find(self, keys: Iterable[Key]) -> list[int]:
        """The blocks of the longest run of keys from the first on; none of them is taken."""
        found = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, keys: Iterable[Key]) -> list[int]:
        """``find``, and one reference to each of the blocks for the caller."""
        found = self.find(keys)
        for block in found:
            if not self._references[block]:
                del self._idle[block]
            self._references[block] += 1
        return found

    def writable(self, block: int) -> tuple[int, bool]:
        """A block with the same meaning that the caller alone may write: copy on write.

        Returns:
            The block and False when the caller is its one owner and it is not cached; otherwise a
            new block and True: its contents must be copied, and the caller's reference to the old
            one was given up.

        Raises:
            OutOfMemory: a new block is needed and none is free; nothing changed.
            InvalidBuffer: the block is free, or not of this pool.
        """
        count = self.refcount(block)
        if not count:
            raise _invalid(self, block)
        if count == 1 and block not in self._keys:
            return block, False
        (new,) = self.allocate(1)
        self.free([block])
        return new, True

    def forget(self, blocks: Iterable[int] | None = None) -> int:
        """Drop contents from the cache, all of them by default; blocks in use stay in use.

        Returns:
            How many can no longer be found.
        """
        if blocks is None:
            count = len(self._keys)
            self._keys.clear()
            self._by_key.clear()
            self._empty += reversed(self._idle)
            self._idle.clear()
            self._tell(Cleared())
            return count
        count = 0
        for block in blocks:
            if block in self._keys:
                self._drop(block)
                count += 1
                if block in self._idle:
                    del self._idle[block]
                    self._empty.append(block)
        return count

    def drain_events(self) -> list[Event]:
        """What happened since the last call, in order.

        Raises:
            MemoryFault: the pool was made without ``keep_events``.
        """
        if self._events is None:
            raise MemoryFault("this pool keeps no events", fix="KvBlocks(..., keep_events=True)")
        events, self._events = self._events, []
        return events

    # --- for kernels ---------------------------------------------------------------------------

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
        touched = tables.touched(blocks, start, count, self.block_size)
        self._require_held(touched)
        return tables.slots(touched, start, count, self.block_size)

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
        for blocks in sequences:
            self._require_held(blocks)
        return tables.table(sequences, max_blocks)

    # --- inside --------------------------------------------------------------------------------

    def _evict(self, n: int) -> None:
        """Empties the ``n`` cached blocks that have been free for the longest."""
        victims = [block for block, _ in zip(self._idle, range(n), strict=False)]
        if self.on_evict is not None:
            self.on_evict([(self._keys[block], block) for block in victims])
        for block in victims:
            del self._idle[block]
            self._drop(block)
        self._empty[:0] = reversed(victims)

    def _drop(self, block: int) -> None:
        key = self._keys.pop(block)
        del self._by_key[key]
        self._tell(Removed(key, block))

    def _tell(self, event: Event) -> None:
        if self._events is not None:
            self._events.append(event)

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
                raise _invalid(self, block)


def _sizes(num_blocks: int, block_size: int) -> tuple[int, int]:
    """How many blocks of how many tokens a pool can have."""
    blocks, tokens = whole(num_blocks, "a pool of {} blocks"), whole(block_size, "{} tokens")
    if not tokens or blocks > _MOST:
        msg = f"a pool of {blocks} blocks of {tokens} tokens cannot be made"
        raise MemoryFault(msg, fix=f"at least one token a block, at most {_MOST} blocks")
    return blocks, tokens


def _invalid(pool: KvBlocks, block: object) -> InvalidBuffer:
    if type(block) is int and 0 <= block < pool.num_blocks:
        return InvalidBuffer(
            f"block {block} is free",
            fix="each block is freed once for each allocate and share, and not used afterwards",
        )
    return InvalidBuffer(
        f"{block!r} is not a block of this pool: its blocks are the integers 0 to "
        f"{pool.num_blocks - 1}",
        fix="pass only numbers that this pool's allocate returned",
    )


def _exhausted(pool: KvBlocks, n: int) -> OutOfMemory:
    known = pool.bytes_per_block
    return OutOfMemory(
        f"{n} KV blocks were asked for, {pool.num_free} of {pool.num_blocks} are free",
        requested_bytes=n * (known or 0),
        free_bytes=None if known is None else pool.num_free * known,
        limit_bytes=None if known is None else pool.num_blocks * known,
        tag="kv_blocks",
        retryable=n <= pool.num_blocks,
        fix="finish or preempt a sequence, or make the pool larger",
    )
