"""What ranks tell each other beside the data: that they agree on what they are about to do.

Records travel through a key-value store, so that this works before a group exists, for every
backend, and for data that would not match.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import torch.distributed as dist

from trivet.collectives.health import Health, meaning
from trivet.collectives.patience import LEEWAY, bounded
from trivet.contracts.collectives import Store
from trivet.errors import CommError, CommTimeout, GroupMismatch, PeerLost

T = TypeVar("T")
Record = Mapping[str, object]

_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.01

FAILED: Final = "failed"  # the key of a record that only says why its rank cannot go on


def prefixed(prefix: str, store: Store) -> Store:
    """A part of a store: the same store under keys that start with ``prefix``."""
    part: Store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined, arg-type]
    return part


class Agreement:
    """Exchanges records between the members of a group, one exchange after the other.

    Args:
        store: the group's own part of a store.
        rank: position of this process.
        size: number of members.
        timeout: how long to wait for the others.
        health: that of the group; a member that does not come in time ends it.

    Attributes:
        lost: says which members have ended; nobody, until the group knows its members.
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
        self.lost: Callable[[], tuple[int, ...]] = tuple
        self._messages: dict[tuple[int, int], int] = {}

    def exchange(self, record: Record) -> list[dict[str, object]]:
        """Every member's record, by rank; all members make the same exchanges in order.

        Raises:
            CommTimeout: a member did not come in time.
            PeerLost: a member has ended.
            CommError: its record says that it failed.
        """
        number, self._exchanges = self._exchanges, self._exchanges + 1
        seconds = self.timeout.total_seconds() + LEEWAY
        try:
            records = self._ask(lambda: self._exchange(number, record), seconds)
        except CommError as error:
            raise self._health.fail(error) from error
        for rank, other in enumerate(records):
            if FAILED in other:
                raise CommError(f"{self._health.where}: rank {rank} cannot go on: {other[FAILED]}")
        return records

    def _exchange(self, number: int, record: Record) -> list[dict[str, object]]:
        keys = [f"{number}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps(record))
        # Not by the store's own wait: some take a second longer, some let no other thread in.
        deadline, pause = time.monotonic() + self.timeout.total_seconds(), _FIRST_PAUSE
        while not self._store.check(keys):
            if pause == _LONGEST_PAUSE and (gone := self.lost()):
                self._refuse_lost(record, [r for r in gone if not self._there(keys[r])])
            if time.monotonic() > deadline:
                raise self._late(record, [r for r, k in enumerate(keys) if not self._there(k)])
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return [json.loads(self._store.get(key)) for key in keys]

    def _there(self, key: str) -> bool:
        return self._store.check([key])

    def _refuse_lost(self, record: Record, gone: list[int]) -> None:
        if gone:
            raise PeerLost(
                f"{self._health.where}: rank {self._rank} waits at {describe(record)} for ranks "
                f"{gone}, which have ended",
                ranks=gone,
                fix="read their output; go on with shrink(), or start again",
            )

    def _late(self, record: Record, missing: list[int]) -> CommTimeout:
        return CommTimeout(
            f"{self._health.where}: rank {self._rank} waited {self.timeout.total_seconds():g} s "
            f"at {describe(record)} for ranks {missing}",
            ranks=missing,
            fix="see where they are; every rank makes the same calls in the same order",
        )

    def _ask(self, question: Callable[[], T], seconds: float = LEEWAY) -> T:
        """Ask the store, with a limit, and with its errors in our terms.

        Raises:
            CommError: it does not answer, or is gone.
        """
        try:
            return bounded(question, seconds, self._health.check_aborted)
        except CommError:
            raise
        except (RuntimeError, OSError) as error:
            found = meaning(error, f"{self._health.where}: the store of torch.distributed")
            raise found from error

    def agree(self, record: Record) -> None:
        """Exchange records that must be equal.

        Raises:
            GroupMismatch: on every rank alike, naming two ranks that differ and both records.
        """
        self.compare(self.exchange(record))

    def compare(self, records: Sequence[Record]) -> None:
        """Raise ``GroupMismatch`` unless all records are equal."""
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
            Whether the other end has spoken; and a function that raises ``GroupMismatch`` on both
            ends unless both records are equal.
        """
        number = self._messages.get((source, to), 0)
        self._messages[source, to] = number + 1
        key = f"{source}>{to}/{number}/"
        peer = to if self._rank == source else source
        self._ask(lambda: self._store.set(f"{key}{self._rank}", json.dumps(record)))

        def arrived() -> bool:
            return self._ask(lambda: self._store.check([f"{key}{peer}"]))

        def verify() -> None:
            other = json.loads(self._ask(lambda: self._store.get(f"{key}{peer}")))
            if other != dict(record):
                raise self._mismatch(*sorted_pair((self._rank, record), (peer, other)))

        return arrived, verify

    def _mismatch(self, a: int, record_a: Record, b: int, record_b: Record) -> CommError:
        return GroupMismatch(
            f"{self._health.where}: ranks disagree: rank {a} has {describe(record_a)}, "
            f"rank {b} has {describe(record_b)}",
            ranks=(a, b),
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
