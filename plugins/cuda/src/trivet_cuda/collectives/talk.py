"""Rounds in which every rank of a group says something to all others, through its store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from trivet.contracts.collectives import Group, Store
from trivet.errors import CommTimeout, CommUnsupported, OutOfMemory

FAILED: Final = "failed"


class Talk:
    """The rounds of one group, in the same order on every rank.

    Args:
        group: the group.
        store: its store.
    """

    def __init__(self, group: Group, store: Store) -> None:
        self._group, self._store, self._rounds = group, store, 0

    def say(self, make: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """What ``make`` returns on every rank, by rank.

        Raises:
            CommUnsupported: on all ranks alike, when it raised on one of them.
            CommTimeout: a rank did not come.
        """
        number, self._rounds = self._rounds, self._rounds + 1
        try:
            mine = make()
        except (RuntimeError, OSError, OutOfMemory, CommUnsupported) as error:
            text = getattr(error, "what", str(error)).partition("\n")[0]
            mine = {FAILED: text or type(error).__name__}
        keys = [f"peer/{number}/{rank}" for rank in range(self._group.size)]
        self._store.set(keys[self._group.rank], json.dumps(mine))
        try:
            self._store.wait(keys, timedelta(seconds=self._group.timeout))
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            msg = f"{self._group.name}: ranks {missing} did not come to share memory"
            raise CommTimeout(msg, ranks=missing) from error
        said: list[dict[str, Any]] = [json.loads(self._store.get(key)) for key in keys]
        for rank, record in enumerate(said):
            if FAILED in record:
                raise CommUnsupported(
                    f"{self._group.name}: no memory of peers: rank {rank}: {record[FAILED]}",
                    ranks=[rank],
                    fix="leave the group to NCCL, or see what that rank says",
                )
        return said

    def alike(self, mine: dict[str, Any]) -> None:
        """Refuse ranks that do not say the same.

        Raises:
            CommUnsupported: on all ranks alike; says what differs.
        """
        said = self.say(lambda: mine)
        for rank, record in enumerate(said):
            for name, value in said[0].items():
                if record.get(name) != value:
                    raise CommUnsupported(
                        f"{self._group.name}: ranks 0 and {rank} differ in {name}: {value} and "
                        f"{record.get(name)}",
                        ranks=[0, rank],
                        fix="use GPUs of one kind, and the same packages on every rank",
                    )
