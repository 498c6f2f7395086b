"""Layers that cache differently and share one budget: full, sliding window, MLA, cross attention.

All groups take blocks of one number of bytes from one pool, so that memory which one of them does
not need serves another. A group with fewer bytes a token has more tokens in a block.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from trivet.errors import InvalidBuffer, MemoryFault
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.keys import Key, keys_of
from trivet.memory.kv.tables import PADDING
from trivet.memory.sizes import whole
from trivet.plugins.describe import shown

__all__ = ["Group", "KvGroups"]


@dataclass(frozen=True)
class Group:
    """Layers that cache alike.

    Args:
        bytes_per_token: over all of its layers (keys and values, or the latent of MLA).
        window: tokens that a query sees, its own included; 0 for all.
        fixed: the cache has one length from the start (cross attention over an encoder's
            output), whatever is generated.
    """

    bytes_per_token: int
    window: int = 0
    fixed: bool = False


@dataclass
class _Sequence:
    """The blocks of one sequence in each group; of a window, ``PADDING`` where it has passed."""

    blocks: dict[str, list[int]] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)


class KvGroups:
    """Blocks for sequences whose layers fall into groups.

    Args:
        groups: by name.
        block_bytes: bytes of one block of any group; a multiple of each group's
            ``bytes_per_token``.
        budget_bytes: for all of them together.

    Raises:
        MemoryFault: a group's tokens do not fill a block, or there is no group.
    """

    def __init__(self, groups: Mapping[str, Group], *, block_bytes: int, budget_bytes: int) -> None:
        self.groups = dict(groups)
        block_bytes = whole(block_bytes, "a block of {} bytes")
        budget_bytes = whole(budget_bytes, "a budget of {} bytes")
        for name, group in self.groups.items():
            whole(group.bytes_per_token, "tokens of {} bytes")
            whole(group.window, "a window of {} tokens")
            if not block_bytes or group.bytes_per_token < 1 or block_bytes % group.bytes_per_token:
                msg = f"group {name!r}: {group.bytes_per_token} bytes a token do not fill a block"
                fix = f"a block of a multiple of {self.common_bytes(self.groups)} bytes"
                raise MemoryFault(msg, fix=fix)
        if not self.groups:
            raise MemoryFault("there is no group of layers", fix="KvGroups({'all': Group(...)})")
        self.block_sizes = {n: block_bytes // g.bytes_per_token for n, g in self.groups.items()}
        self.pool = KvBlocks(budget_bytes // block_bytes, 1, bytes_per_block=block_bytes)
        self._sequences: dict[Hashable, _Sequence] = {}

    @staticmethod
    def common_bytes(groups: Mapping[str, Group]) -> int:
        """The least bytes of a block that every group fills."""
        return math.lcm(*(max(1, g.bytes_per_token) for g in groups.values()))

    def blocks(self, sequence: Hashable, group: str) -> list[int]:
        """The blocks of a sequence in one group, in order; where its window has passed, 0."""
        known = self._known(sequence).blocks
        if group not in known:
            raise MemoryFault(f"there is no group {shown(group)}", fix=", ".join(sorted(known)))
        return list(known[group])

    def extend(self, sequence: Hashable, tokens: int, *, fixed: int = 0) -> None:
        """Makes room for a sequence of so many tokens, in every group or in none.

        Args:
            sequence: what it is called.
            tokens: its whole length so far.
            fixed: the length in groups that are ``fixed``; read when a sequence is new.

        Raises:
            OutOfMemory: the budget does not admit it; nothing was taken.
        """
        tokens, fixed = whole(tokens, "a sequence of {} tokens"), whole(fixed, "{} fixed tokens")
        known = self._sequences.get(sequence, _Sequence())
        need: dict[str, int] = {}
        for name, group in self.groups.items():
            length = fixed if group.fixed else tokens
            have = len(known.blocks.get(name, ()))
            need[name] = max(0, -(-length // self.block_sizes[name]) - have)
        taken = iter(self.pool.allocate(sum(need.values())))
        for name, n in need.items():
            known.blocks.setdefault(name, []).extend(next(taken) for _ in range(n))
        self._sequences[sequence] = known

    def advance(self, sequence: Hashable, tokens: int) -> int:
        """Gives back blocks that no later query sees: those that a window has passed.

        Args:
            sequence: what it is called.
            tokens: how many of its tokens are computed.

        Returns:
            How many blocks went back.
        """
        tokens = whole(tokens, "a sequence of {} tokens")
        known, count = self._known(sequence), 0
        for name, group in self.groups.items():
            if not group.window or group.fixed:
                continue
            first = max(0, tokens - group.window + 1) // self.block_sizes[name]
            blocks, start = known.blocks[name], known.passed.get(name, 0)
            end = min(first, len(blocks))
            if end > start:
                self.pool.free(blocks[start:end])
                blocks[start:end] = [PADDING] * (end - start)
                known.passed[name], count = end, count + end - start
        return count

    def publish(self, sequence: Hashable, tokens: Sequence[int], *, salt: bytes = b"") -> None:
        """Lets every full block of a sequence be found by the tokens up to its end."""
        known = self._known(sequence)
        for name in self._shared():
            passed = known.passed.get(name, 0)
            rows = list(zip(known.blocks[name], self._keys(name, tokens, salt), strict=False))
            for block, key in rows[passed:]:
                self.pool.publish(block, key)

    def adopt(self, sequence: Hashable, tokens: Sequence[int], *, salt: bytes = b"") -> int:
        """Starts a sequence with the longest cached prefix that every group has.

        Returns:
            How many of its tokens need not be computed.

        Raises:
            InvalidBuffer: the sequence holds blocks already.
        """
        if sequence in self._sequences:
            msg = f"the sequence {shown(sequence)} holds blocks already"
            raise InvalidBuffer(msg, fix="end it first, or give the new one another name")
        length = self.find(tokens, salt=salt)
        known = _Sequence()
        for name in self.groups:
            known.blocks[name] = []
        for name in self._shared():
            count = length // self.block_sizes[name]
            keys, first = self._keys(name, tokens, salt)[:count], self._seen_from(name, length)
            known.blocks[name] = [PADDING] * first + self.pool.take(keys[first:])
            known.passed[name] = first
        self._sequences[sequence] = known
        return length

    def find(self, tokens: Sequence[int], *, salt: bytes = b"") -> int:
        """The longest cached prefix in tokens: in all groups, as far as each still sees it.

        At least one token is left to compute, since its result is what is asked for.
        """
        if not self._shared():
            return 0  # nothing is kept of tokens
        step = math.lcm(*(self.block_sizes[n] for n in self._shared()))
        keys = {n: self._keys(n, tokens, salt) for n in self._shared()}
        for length in range((len(tokens) - 1) // step * step, 0, -step):
            if all(self._has(n, keys[n], length) for n in keys):
                return length
        return 0

    def end(self, sequence: Hashable) -> None:
        """Gives back every block of a sequence, the end first.

        Raises:
            InvalidBuffer: there is none of that name; it ended before, perhaps.
        """
        known = self._known(sequence)
        del self._sequences[sequence]
        for name, blocks in known.blocks.items():
            self.pool.free(reversed(blocks[known.passed.get(name, 0) :]))

    def _known(self, sequence: Hashable) -> _Sequence:
        known = self._sequences.get(sequence)
        if known is None:
            msg = f"there is no sequence {shown(sequence)}"
            raise InvalidBuffer(msg, fix="extend or adopt it first, and end it once")
        return known

    def _shared(self) -> list[str]:
        """Groups whose contents depend on the tokens alone."""
        return [n for n, g in self.groups.items() if not g.fixed]

    def _keys(self, name: str, tokens: Sequence[int], salt: bytes) -> list[Key]:
        return keys_of(tokens, self.block_sizes[name], salt=name.encode() + b"\0" + salt)

    def _seen_from(self, name: str, length: int) -> int:
        """The first block that a query after ``length`` tokens sees."""
        window = self.groups[name].window
        return max(0, length - window + 1) // self.block_sizes[name] if window else 0

    def _has(self, name: str, keys: Sequence[Key], length: int) -> bool:
        seen = keys[self._seen_from(name, length) : length // self.block_sizes[name]]
        return len(self.pool.find(seen)) == len(seen)
