"""Memory: the small abilities that a vendor may bring, and the facts that memory is told in.

What a plugin's ``trivet_memory`` returns is one object with any of the protocols below
(``Allocator``, ``InfoSource``, ``StatsSource``); what is missing is taken from torch. Weights and
activations always stay in torch's allocator; an ``Allocator`` serves the large buffers that live
long: those of ``dev.memory.kv_caches``.

All sizes are bytes, as plain integers; None means unknown, 0 means none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

import torch

__all__ = ["Allocator", "InfoSource", "MemoryInfo", "Stats", "StatsSource"]


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """How much memory a device has, in numbers that must not be mistaken for one another.

    Args:
        total_bytes: what is built in.
        free_bytes: what a new allocation of this process can expect to get now.
        limit_bytes: a ceiling that was set for this process from outside (a control group).
        recommended_bytes: what the maker advises to stay under.
        max_buffer_bytes: the largest single allocation.
        source: where the numbers come from, for a person.
    """

    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    recommended_bytes: int | None = None
    max_buffer_bytes: int | None = None
    source: str = ""

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in use: by the device's allocator, and by trivet's own account.

    Args:
        allocated_bytes: in live tensors, as the device's allocator counts them.
        reserved_bytes: held by that allocator, live or cached.
        max_allocated_bytes: peak of ``allocated_bytes``.
        max_reserved_bytes: peak of ``reserved_bytes``.
        accounted_bytes: in the ledger now; the ledger counts on every device.
        max_accounted_bytes: peak of ``accounted_bytes``.
        by_tag: ``accounted_bytes`` by tag.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_allocated_bytes: int | None = None
    max_reserved_bytes: int | None = None
    accounted_bytes: int = 0
    max_accounted_bytes: int = 0
    by_tag: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values, tags in alphabetical order."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"by_tag": dict(sorted(self.by_tag.items()))}


@runtime_checkable
class Allocator(Protocol):
    """Gives and takes back large buffers.

    A failed ``allocate`` changes nothing. Neither method need be thread-safe. Limits are not its
    business: the ledger has refused what exceeds one before ``allocate`` is called.
    """

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer: a ``uint8`` tensor ``[nbytes]``, contiguous, its address a multiple of 64.

        Args:
            nbytes: its size; all of it may be written.
            tag: what it is for, in the words of ``dev.memory.stats().by_tag``.

        Raises:
            torch.OutOfMemoryError: there is no room; ``trivet.errors.OutOfMemory`` is one.
        """
        ...

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Take back a buffer; it is the very tensor that ``allocate`` returned.

        No view of it is used afterwards.
        """
        ...


@runtime_checkable
class InfoSource(Protocol):
    """Knows the device's memory better than torch."""

    def info(self) -> MemoryInfo:
        """The numbers of this moment."""
        ...


@runtime_checkable
class StatsSource(Protocol):
    """Counts what its allocator holds; the fields of the ledger are filled in by the caller."""

    def stats(self) -> Stats:
        """The numbers of this moment."""
        ...
