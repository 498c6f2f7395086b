"""What a rank finds out about the others when one of its calls has failed."""

from __future__ import annotations

import contextlib
import copy
import json
import time
from typing import Any, Final

from trivet.collectives.patience import bounded
from trivet.collectives.place import ended
from trivet.collectives.recorder import OPERATION, SEQ, Call
from trivet.contracts.collectives import Group, Store
from trivet.errors import CommAborted, CommError, CommTimeout, GroupMismatch, PeerLost

SECONDS: Final = 0.3
"""How long it may take: others that failed for the same reason say so within that."""

_PAUSE: Final = 0.02


class Diagnosis:
    """Compares failures of the members of a group, through its store.

    Args:
        group: the group.
        store: its own part of a store.
    """

    def __init__(self, group: Group, store: Store) -> None:
        self._group = group
        self._store = store

    def of(self, error: CommError, call: Call, where: str) -> CommError:
        """The error of a call with the ranks that it is about.

        It never takes longer than ``SECONDS``, whatever has become of the store.
        """
        told: dict[int, dict[str, Any]] = {}
        if isinstance(error, (CommTimeout, PeerLost)):
            mine = {"seq": call[SEQ], "operation": call[OPERATION], "code": error.code}
            with contextlib.suppress(RuntimeError, ValueError, OSError, CommTimeout):
                bounded(lambda: self._ask(mine, told), SECONDS)  # the store may be gone
        lost = tuple(rank for rank in ended(self._group) if rank not in told)
        if isinstance(error, CommTimeout) and lost:
            error = PeerLost(error.what, fix=error.fix)
        ranks, more = error.ranks, ""
        if isinstance(error, PeerLost):
            more = self._named("ended", lost or ranks)
            ranks = lost or ranks or tuple(sorted(told))
        elif isinstance(error, CommTimeout):
            others = set(range(self._group.size)) - {self._group.rank}
            at_it = {r for r, other in told.items() if other["seq"] == call[SEQ]}
            if not ranks and (told or len(others) == 1):
                ranks = tuple(sorted(others - at_it))
            more = self._named("did not come", ranks)
        for rank, other in sorted(told.items()):
            more += (
                f"; rank {rank} gave up at {other['operation']} #{other['seq']}: {other['code']}"
            )
        return told_of(error, call, where, ranks, more)

    def _ask(self, mine: dict[str, Any], told: dict[int, dict[str, Any]]) -> None:
        """Say how this rank failed, and read how the others did until time is over."""
        deadline = time.monotonic() + SECONDS
        self._store.set(f"failed/{self._group.rank}", json.dumps(mine))
        waiting = set(range(self._group.size)) - {self._group.rank}
        while waiting and time.monotonic() < deadline:
            for rank in tuple(waiting):
                if self._store.check([f"failed/{rank}"]):
                    told[rank] = json.loads(self._store.get(f"failed/{rank}"))
                    waiting.discard(rank)
            time.sleep(_PAUSE)

    @staticmethod
    def _named(what: str, ranks: tuple[int, ...]) -> str:
        return f"; {what}: rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" * bool(ranks)


def told_of(
    error: CommError, call: Call, where: str, ranks: tuple[int, ...] = (), more: str = ""
) -> CommError:
    """The same error, with the call that it happened in."""
    said = copy.copy(error)
    number = "" if call[SEQ] is None else f" #{call[SEQ]}"
    after = ""
    if isinstance(error, (CommTimeout, PeerLost, CommAborted, GroupMismatch)):
        after = f" after {time.time() - call[7]:.2f} s"
    said.what = f"{call[OPERATION]}{number} of {where}: {error.what}{after}{more}"
    said.ranks = tuple(ranks) or error.ranks
    said.operation, said.seq = call[OPERATION], call[SEQ]
    return said
