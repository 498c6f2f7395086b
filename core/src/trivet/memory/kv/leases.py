"""Who holds which blocks: a step that fails gives back what it took, an owner that ends all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

from trivet.errors import InvalidBuffer
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.keys import Key

__all__ = ["Leases"]


class Leases:
    """A pool whose blocks have owners: a request, a transfer, another engine.

    Args:
        pool: the blocks; whatever is taken past this object has no owner here.
    """

    def __init__(self, pool: KvBlocks) -> None:
        self.pool = pool
        self._held: dict[Hashable, list[int]] = {}
        self._attempts: list[list[tuple[Hashable, int]]] = []  # what each one under way has taken

    def held(self, owner: Hashable) -> list[int]:
        """The blocks of an owner in the order in which they were taken."""
        return list(self._held.get(owner, ()))

    @property
    def owners(self) -> list[Hashable]:
        """Everybody who holds a block."""
        return list(self._held)

    def allocate(self, owner: Hashable, n: int = 1) -> list[int]:
        """``KvBlocks.allocate`` for an owner."""
        return self._add(owner, self.pool.allocate(n))

    def take(self, owner: Hashable, keys: Iterable[Key]) -> list[int]:
        """``KvBlocks.take`` for an owner."""
        return self._add(owner, self.pool.take(keys))

    def free(self, owner: Hashable, blocks: Iterable[int] | None = None) -> None:
        """Gives blocks of an owner back, all of them by default: the end of its list first.

        Raises:
            InvalidBuffer: it does not hold one of them; nothing was given back.
        """
        held = self._held.get(owner, [])
        given = held[::-1] if blocks is None else list(blocks)
        left = list(held)
        for block in given:
            if block not in left:
                msg = f"{owner!r} does not hold block {block}"
                raise InvalidBuffer(msg, fix="each owner gives back what it took, once")
            left.remove(block)
        self.pool.free(given)
        if left:
            self._held[owner] = left
        else:
            self._held.pop(owner, None)
        for taken in self._attempts:
            for block in given:
                if (owner, block) in taken:
                    taken.remove((owner, block))

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A step that takes blocks for any owners: when the block fails, all go back.

        What was given back in the meantime stays given back.
        """
        taken: list[tuple[Hashable, int]] = []
        self._attempts.append(taken)
        try:
            yield
        except BaseException as error:
            for owner, block in taken[::-1]:
                try:
                    self.free(owner, [block])
                except InvalidBuffer as second:  # given back past this object: told with the first
                    error.add_note(
                        f"block {block} of {owner!r} was not held any more: {second.what}"
                    )
            raise
        finally:
            self._attempts = [one for one in self._attempts if one is not taken]

    def _add(self, owner: Hashable, blocks: list[int]) -> list[int]:
        if blocks:
            self._held.setdefault(owner, []).extend(blocks)
            for taken in self._attempts:
                taken += [(owner, block) for block in blocks]
        return blocks
