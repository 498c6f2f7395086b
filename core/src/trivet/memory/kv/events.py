"""What happened to cached blocks, for a cache outside of the process: a router, another tier."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.memory.kv.keys import Key


@dataclass(frozen=True, slots=True)
class Stored:
    """A block can be found by its key from now on."""

    key: Key
    block: int


@dataclass(frozen=True, slots=True)
class Removed:
    """It cannot be found any more: its block is given to somebody else."""

    key: Key
    block: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """No block can be found any more."""


Event = Stored | Removed | Cleared
