"""Which blocks of the KV cache each request holds, and which it finds there already.

A full block is published under its key as soon as it is computed; a request that begins alike
shares it by reference, and writes only behind what it shares. Blocks that nobody holds stay cached
until they are needed. A request that is put aside gives its blocks back: what was in them is
computed again later, or comes back from a store where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trivet.memory import KvBlocks
from trivet.memory.kv.keys import Key, first_parent, keys_of
from trivet.memory.kv.leases import Leases

if TYPE_CHECKING:
    from llm.schedule import Piece, Request


class Store(Protocol):
    """Keeps contents of blocks somewhere else."""

    def save(self, blocks: Sequence[int], /) -> Any:
        """A copy of the contents of some blocks."""

    def load(self, saved: Any, first: int, blocks: Sequence[int], /) -> None:
        """Copies what was saved, from its block ``first`` on, into other blocks."""


@dataclass
class Usage:
    """What the cache saved and cost so far.

    Attributes:
        prompt_tokens: Of all prompts that were begun.
        reused_tokens: Those of them that were in the cache already.
        preemptions: How often a request was put aside because the pool was short.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    preemptions: int = 0


class Cache:
    """The blocks of a pool and the requests that hold them.

    Args:
        pool: The blocks.
        salt: What their contents depend on besides the tokens; None shares nothing.
        store: Where contents go while a request is put aside; None computes them again.
    """

    def __init__(
        self, pool: KvBlocks, salt: bytes | None = None, store: Store | None = None
    ) -> None:
        self._pool, self._leases = pool, Leases(pool)
        self._salt, self._store = salt, store
        self.usage = Usage()

    def attempt(self) -> AbstractContextManager[None]:
        """A step: when it fails, the blocks that it took go back."""
        return self._leases.attempt()

    def enter(self, request: Request, spare: int | None, computing: AbstractSet[Key]) -> bool:
        """Takes blocks for all tokens of a request, those first that hold its beginning already.

        Args:
            request: One that holds nothing.
            spare: Blocks that must be left afterwards; None when nothing else runs.
            computing: Keys of blocks that the next step computes: who begins alike waits for it.

        Returns:
            False where it has to wait; nothing was taken.

        Raises:
            OutOfMemory: Nothing else runs and it does not fit: others hold blocks of the pool.
        """
        pool, tokens = self._pool, len(request.prompt) + len(request.output)
        # At least one token is computed: what follows it comes out of that.
        keys = self._keys(request, tokens - 1 if request.saved is None else request.cached)
        found = pool.find(keys)
        if len(found) < len(keys) and keys[len(found)] in computing:
            return False
        need = pool.blocks_for(tokens) - len(found)
        idle = sum(not pool.refcount(block) for block in found)  # free until they are taken
        if spare is not None and need + spare > pool.num_free - idle:
            return False
        with self._leases.attempt():
            blocks = self._leases.take(request, keys) + self._leases.allocate(request, need)
            if request.saved is not None and self._store is not None:
                end = pool.blocks_for(request.cached)
                self._store.load(request.saved, len(found), blocks[len(found) : end])
        request.blocks, request.published = blocks, len(found)
        if request.saved is None:
            request.cached = len(found) * pool.block_size
        return True

    def entered(self, request: Request) -> None:
        """Notes that the first step of a request since ``enter`` went well."""
        request.saved = None
        if not request.preempted:
            self.usage.prompt_tokens += len(request.prompt)
            self.usage.reused_tokens += request.published * self._pool.block_size

    def grow(self, request: Request) -> None:
        """Takes what the request's tokens need beyond its blocks.

        Raises:
            OutOfMemory: The pool is short; nothing was taken.
        """
        tokens = len(request.prompt) + len(request.output)
        if (need := self._pool.blocks_for(tokens) - len(request.blocks)) > 0:
            request.blocks += self._leases.allocate(request, need)

    def grows(self, request: Request) -> bool:
        """Whether the request may need more blocks than it has, or than ``enter`` takes."""
        tokens = len(request.prompt) + len(request.output)
        has = len(request.blocks) or self._pool.blocks_for(tokens)
        return self._pool.blocks_for(len(request.prompt) + request.limit - 1) > has

    def publish(self, request: Request) -> None:
        """Lets others find the blocks that are full by now."""
        keys = self._keys(request, request.cached)
        for i in range(request.published, len(keys)):
            self._pool.publish(request.blocks[i], keys[i])
        request.published = max(request.published, len(keys))

    def completes(self, piece: Piece) -> list[Key]:
        """Keys of the blocks that are full after a piece and were not before."""
        before = piece.start // self._pool.block_size
        return self._keys(piece.request, piece.start + len(piece.ids))[before:]

    def leave(self, request: Request) -> None:
        """Gives all blocks of a request back, and forgets what was saved of it."""
        self._give_back(request)
        request.saved = None

    def put_aside(self, request: Request) -> None:
        """Gives them back for a while; ``enter`` goes on where it was."""
        if self._store is not None and request.cached:
            end = self._pool.blocks_for(request.cached)
            request.saved = self._store.save(request.blocks[:end])
        else:
            request.cached = 0
        self._give_back(request)
        request.preempted += 1
        self.usage.preemptions += 1

    def undo(self, request: Request) -> None:
        """Makes a request what it was before an attempt that failed."""
        request.blocks = self._leases.held(request)
        if not request.blocks:
            request.published = 0
            request.cached = request.cached if request.saved is not None else 0

    def _give_back(self, request: Request) -> None:
        self._leases.free(request)
        request.blocks, request.published = [], 0

    def _keys(self, request: Request, tokens: int) -> list[Key]:
        """The keys of the full blocks among the first tokens of a request."""
        size = self._pool.block_size
        count, known = tokens // size, len(request.keys)
        if self._salt is None or not count:
            return []
        if count > known:
            parent = request.keys[-1] if known else first_parent(self._salt)
            said = (request.prompt + request.output)[known * size : count * size]
            request.keys += keys_of(said, size, parent=parent)
        return request.keys[:count]
