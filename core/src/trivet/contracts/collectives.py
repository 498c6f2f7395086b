"""Collectives: what a vendor may bring.

What a plugin's ``trivet_collectives`` returns is a ``CollectiveProvider``. The object that it
opens for a group has any of the methods of ``Collective``; ``torch.distributed`` does the rest.

Vendor methods write into a destination that the caller brings and return ``Work``. All tensors
that they get are flat and contiguous and lie on the group's device. Operations that only move
data (``MOVEMENT``) get ``uint8`` tensors, so that every dtype can be moved. Ranks are positions
in the group, 0 to ``size - 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, runtime_checkable

import torch

__all__ = [
    "MOVEMENT",
    "OPERATIONS",
    "REDUCTIONS",
    "Closable",
    "Collective",
    "CollectiveProvider",
    "CollectiveRefusal",
    "Completed",
    "GroupInfo",
    "Store",
    "Work",
]

REDUCTIONS: Final = ("sum", "max", "min", "avg")  # avg reaches a vendor as sum
MOVEMENT: Final = ("all_gather", "broadcast", "all_to_all", "send", "recv")
OPERATIONS: Final = ("all_reduce", "reduce_scatter", *MOVEMENT, "barrier")


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as a vendor sees it: ``ranks`` are its members' ranks in the world, ascending."""

    name: str
    rank: int
    ranks: tuple[int, ...]
    device: torch.device

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)


class Store(Protocol):
    """A key-value store that all members see; ``torch.distributed`` has several."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value, waiting for it to be written."""

    def check(self, keys: list[str], /) -> bool:
        """True when all keys are written."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0, and return its new value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return when all keys are written; raise when that takes longer."""


@runtime_checkable
class Work(Protocol):
    """An operation that was started.

    Until it has been waited for, its inputs must not be written and its outputs not be read.
    """

    def wait(self, timeout: float | None = None) -> None:
        """Wait: on a device with streams the current stream waits, elsewhere the caller.

        Args:
            timeout: seconds that the caller waits at most; None is the group's own timeout.

        Raises:
            CommError: the operation failed or did not end in time. A vendor may raise anything
                else as well; it is reported as ``CommError``.
        """

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once."""

    def result(self) -> torch.Tensor:
        """Wait, then return what was written: the new tensor, or the one written in place."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The ``Work`` of a vendor whose method returns when everything is done."""

    out: torch.Tensor

    def wait(self, timeout: float | None = None) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """Always true."""
        return True

    def result(self) -> torch.Tensor:
        """The tensor that was written."""
        return self.out


class Collective(Protocol):
    """The operations of one group. A vendor's object may have only some of them.

    An object may also have ``refuses`` and ``close`` (``CollectiveRefusal``, ``Closable``).
    """

    def all_reduce(self, out: torch.Tensor, inp: torch.Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[i]``; ``out`` may be ``inp``."""

    def reduce_scatter(self, out: torch.Tensor, inp: torch.Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[rank * n + i]``, for ``n`` elements of ``out``."""

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Work:
        """``out[r * n + i] = inp[i] of rank r``."""

    def broadcast(self, x: torch.Tensor, source: int) -> Work:
        """Write ``x`` of rank ``source`` into every other rank's ``x``."""

    def all_to_all(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
    ) -> Work:
        """Piece ``r`` of ``inp`` goes to rank ``r``; piece ``r`` of ``out`` comes from rank ``r``.

        The splits are element counts, one a rank; they may be 0.
        """

    def send(self, x: torch.Tensor, to: int) -> Work:
        """Send ``x``; the messages of a pair arrive in the order in which they were sent."""

    def recv(self, out: torch.Tensor, source: int) -> Work:
        """Receive into ``out``, which has the size that was sent."""

    def barrier(self) -> Work:
        """Ends when every rank has started it."""


@runtime_checkable
class CollectiveRefusal(Protocol):
    """Says which calls a vendor leaves to ``torch.distributed``."""

    def refuses(self, operation: str, dtype: torch.dtype, numel: int, reduction: str) -> str:
        """The reason for leaving this call to torch, or ``""`` for taking it.

        ``numel`` is that of the input. The answer may depend on nothing but the arguments and
        the group: ranks that answer differently wait for each other for ever.
        """


@runtime_checkable
class Closable(Protocol):
    """Holds something that has to be given back when its group is closed."""

    def close(self) -> None:
        """Give everything back."""


@runtime_checkable
class CollectiveProvider(Protocol):
    """Opens a vendor's operations for a group.

    Args:
        name: how explanations call it.
    """

    name: str

    def open(self, group: GroupInfo, store: Store) -> object:
        """An object with some methods of ``Collective``; every member calls it.

        ``store`` is the group's own key-value store: what ranks must tell each other first.
        Raising on one rank refuses the group on all of them.
        """
