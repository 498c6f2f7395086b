"""The flight recorder: the last calls of each group on this rank, always on."""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from trivet.collectives.health import Health
from trivet.contracts.collectives import Group

SCHEMA: Final = 1
KEPT: Final = 256
"""Calls of a group that are remembered."""

EVERY: Final = 1.0
"""Seconds between two files of a group whose calls go on."""

SEQ, OPERATION, DTYPE, NUMEL, REDUCTION, PEER, PROVIDER, BEGAN, ENDED, ERROR = range(10)
CHECK: Final = "check"
"""The provider of calls that only compare what ranks are about to do."""

Call = list[Any]
"""One call; a list because it is made on every call and read on few."""

_log: Final = logging.getLogger("trivet.collectives")


class Recorder:
    """Remembers the calls of one group.

    Args:
        group: whose calls they are.
        health: that of the group.
        folder: where failures and the progress of the calls are written; None for nowhere.
    """

    def __init__(self, group: Group, health: Health, folder: Path | None) -> None:
        self.group = group
        self.health = health
        self.folder = folder
        self.calls: deque[Call] = deque(maxlen=KEPT)
        self.seq = 0
        self._written: tuple[object, ...] = ()
        if folder is not None:
            _publisher().add(self)

    def begin(
        self,
        operation: str,
        dtype: torch.dtype,
        numel: int,
        reduction: str,
        peer: int | None,
        provider: str,
    ) -> Call:
        """A call is made now; collective ones are numbered, messages and checks are not."""
        seq: int | None = None
        if operation != "batch" and provider != CHECK:
            seq, self.seq = self.seq, self.seq + 1
        call = [seq, operation, dtype, numel, reduction, peer, provider, time.time(), None, ""]
        self.calls.append(call)
        return call

    def document(self) -> dict[str, Any]:
        """Everything as plain values, the oldest call first."""
        group, failure = self.group, self.health.failure
        return {
            "schema": SCHEMA,
            "time": time.time(),
            "group": group.name,
            "token": group.token,
            "rank": group.rank,
            "size": group.size,
            "host": group.members[group.rank].host,
            "pid": group.members[group.rank].pid,
            "world": [member.rank for member in group.members],
            "timeout": group.timeout,
            "closed": self.health.closed,
            "failure": None if failure is None else failure.what,
            "failure_code": None if failure is None else failure.code,
            "failure_ranks": [] if failure is None else list(failure.ranks),
            "calls": [_plain(call) for call in tuple(self.calls)],
        }

    def write(self) -> None:
        """Write what is remembered, if a folder is named; what fails is logged."""
        if self.folder is None:
            return
        document = self.document()
        path = self.folder / f"{document['token']}.{document['rank']}.json"
        part = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(document), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            _log.warning("calls of %s are not recorded: %s", self.health.where, error)
            self.folder = None

    def write_changes(self) -> None:
        """Write unless nothing happened since the last time."""
        last = self.calls[-1] if self.calls else None
        now = (self.seq, id(last), last and last[ENDED], self.health.failure, self.health.closed)
        if now != self._written:
            self._written = now
            self.write()


def _plain(call: Call) -> dict[str, Any]:
    dtype, numel = call[DTYPE], call[NUMEL]
    return {
        "seq": call[SEQ],
        "operation": call[OPERATION],
        "dtype": str(dtype).removeprefix("torch."),
        "numel": numel,
        "nbytes": numel * dtype.itemsize,
        "reduction": call[REDUCTION],
        "peer": call[PEER],
        "provider": call[PROVIDER],
        "began": call[BEGAN],
        "ended": call[ENDED],
        "error": call[ERROR],
    }


class _Publisher(threading.Thread):
    """Writes the records of living groups, so that a rank that hangs can be seen from outside."""

    def __init__(self) -> None:
        super().__init__(name="trivet-comm-recorder", daemon=True)
        self._recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()

    def add(self, recorder: Recorder) -> None:
        """Write this one, too."""
        self._recorders.add(recorder)

    def run(self) -> None:
        """Goes on until the process ends."""
        while True:
            for recorder in list(self._recorders):
                recorder.write_changes()
            time.sleep(EVERY)


@cache
def _publisher() -> _Publisher:
    thread = _Publisher()
    thread.start()
    return thread
