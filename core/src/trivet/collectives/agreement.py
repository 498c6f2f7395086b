"""What ranks tell each other beside the data: that they agree on what they are about to do.

Records travel through a key-value store, so that this works before a group exists, for every
backend, and for data that would not match.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from trivet.collectives.work import Health
from trivet.contracts.collectives import Store
from trivet.errors import CommError

Record = Mapping[str, object]

FAILED: Final = "failed"  # the key of a record that only says why its rank cannot go on


class Prefixed:
    """A part of a store: the same store under keys that start with ``prefix``."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str, /) -> bytes:
        """Read a value, waiting for it to be written."""
        return self._store.get(self._prefix + key)

    def check(self, keys: list[str], /) -> bool:
        """True when all keys are written."""
        return self._store.check([self._prefix + key for key in keys])

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0, and return its new value."""
        return self._store.add(self._prefix + key, amount)

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return when all keys are written; raise when that takes longer."""
        self._store.wait([self._prefix + key for key in keys], timeout)


class Agreement:
    """Exchanges records between the members of a group, one exchange after the other.

    Args:
        store: the group's own part of a store.
        rank: position of this process.
        size: number of members.
        timeout: how long to wait for the others.
        health: that of the group; a member that does not come in time ends it.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, health: Health
    ) -> None:
        self.timeout = timeout
        self._health = health
        self._store = store
        self._rank = rank
        self._size = size
        self._exchanges = 0
        self._messages: dict[tuple[int, int], int] = {}

    def exchange(self, record: Record) -> list[dict[str, object]]:
        """Every member's record, by rank; all members make the same exchanges in order.

        Raises:
            CommError: a member did not come in time, or its record says that it failed.
        """
        number, self._exchanges = self._exchanges, self._exchanges + 1
        keys = [f"{number}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps(record))
        try:
            self._store.wait(keys, self.timeout)
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self._is_there(key)]
            self._health.failure = CommError(
                f"{self._health.where}: rank {self._rank} waited "
                f"{self.timeout.total_seconds():g} s at {describe(record)} for ranks {missing}",
                fix="see where those ranks are; every rank makes the same calls in the same order",
            )
            raise self._health.failure from error
        records: list[dict[str, object]] = [json.loads(self._store.get(key)) for key in keys]
        for rank, other in enumerate(records):
            if FAILED in other:
                raise CommError(f"{self._health.where}: rank {rank} cannot go on: {other[FAILED]}")
        return records

    def agree(self, record: Record) -> None:
        """Exchange records that must be equal.

        Raises:
            CommError: on every rank alike, naming two ranks that differ and both records.
        """
        self.compare(self.exchange(record))

    def compare(self, records: Sequence[Record]) -> None:
        """Raise ``CommError`` unless all records are equal."""
        for rank, other in enumerate(records):
            if other != records[0]:
                raise self._mismatch(0, records[0], rank, other)

    def meet(
        self, source: int, to: int, record: Record
    ) -> tuple[Callable[[], bool], Callable[[], None]]:
        """Tell the other end of a message what this end expects, without waiting.

        Args:
            source: rank that sends.
            to: rank that receives.
            record: what this end is about to send or receive.

        Returns:
            Whether the other end has spoken; and a function that raises ``CommError`` on both
            ends unless both records are equal.
        """
        number = self._messages.get((source, to), 0)
        self._messages[source, to] = number + 1
        key = f"{source}>{to}/{number}/"
        peer = to if self._rank == source else source
        self._store.set(f"{key}{self._rank}", json.dumps(record))

        def arrived() -> bool:
            return self._is_there(f"{key}{peer}")

        def verify() -> None:
            other = json.loads(self._store.get(f"{key}{peer}"))
            if other != dict(record):
                raise self._mismatch(*sorted_pair((self._rank, record), (peer, other)))

        return arrived, verify

    def _is_there(self, key: str) -> bool:
        return self._store.check([key])

    def _mismatch(self, a: int, record_a: Record, b: int, record_b: Record) -> CommError:
        return CommError(
            f"{self._health.where}: ranks disagree: rank {a} has {describe(record_a)}, "
            f"rank {b} has {describe(record_b)}",
            fix="nothing was communicated; make the same call with the same arguments everywhere",
        )


def describe(record: Record) -> str:
    """A record in one line, without what is empty."""
    return ", ".join(f"{key} {value}" for key, value in record.items() if value not in ("", None))


def sorted_pair(
    mine: tuple[int, Record], other: tuple[int, Record]
) -> tuple[int, Record, int, Record]:
    """Both ends with the lower rank first, so that both ends say the same."""
    (a, record_a), (b, record_b) = (mine, other) if mine[0] < other[0] else (other, mine)
    return a, record_a, b, record_b
