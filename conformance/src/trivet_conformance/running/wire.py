"""What a worker tells the process that started it: lines of JSON behind a secret of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trivet_conformance.result import Finding, Result, Status
from trivet_conformance.running.run import Place

LOST_CHANNEL = 87
"""Exit status of a worker whose channel was closed under it."""

TOLD_WHY = 86
"""Exit status of a worker that had to end, and said why."""


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    Args:
        plugin: name of the plugin.
        spec: what the user called it: a name, or a path.
        paths: folders in front of ``sys.path``.
        folder: a folder of the run, for files.
        families: names of families; none means all.
        ops: names of operators; none means all.
        seed: decides every random number.
        quick: small grids.
        case: id of the only check to run.
        shard: (which, of how many), counted from one.
        checks_only: only whether plugin and device work at all.
        execution: the word that the device must have; empty for any.
        harness: whether calls of an ordinary process are compared, and memory is watched.
    """

    plugin: str
    spec: str = ""
    paths: tuple[str, ...] = ()
    folder: str = ""
    families: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    seed: int = 0
    quick: bool = False
    case: str = ""
    shard: tuple[int, int] = (1, 1)
    checks_only: bool = False
    execution: str = ""
    harness: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Job:
        """The job of plain values."""
        made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        return cls(**made)


class Channel:
    """The worker's end of the pipe.

    A line break goes first, so that what foreign code writes without one spoils nothing.
    """

    def __init__(self, descriptor: int, secret: str) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._secret = secret

    def send(self, what: str, **values: Any) -> None:
        """Writes one message; a process whose channel is gone ends."""
        text = json.dumps({"what": what, **values}, default=str)
        data = f"\n{self._secret} {text}\n".encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            os._exit(LOST_CHANNEL)


class Listener:
    """The parent's end: whole messages, and how much came from somebody else."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self._secret = secret.encode() + b" "
        self._rest = b""
        self.foreign = 0
        self.sample = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that some more bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            message = self._message(line)
            if message is not None:
                found.append(message)
            elif line:
                self.foreign += len(line)
                self.sample = self.sample or line[:80]
        return found

    def _message(self, line: bytes) -> dict[str, Any] | None:
        if not line.startswith(self._secret):
            return None
        try:
            found = json.loads(line[len(self._secret) :])
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def result_to_json(result: Result) -> dict[str, Any]:
    """A result that ``result_from_json`` gives back as it was."""
    return asdict(result)


def result_from_json(row: Mapping[str, Any]) -> Result:
    """The result of plain values."""
    finding = dict(row["finding"])
    notes = tuple(finding.pop("notes"))
    status = Status(finding.pop("status"))
    made = Finding(status, notes=notes, **finding)
    return Result(**{**row, "finding": made})


def place_from_json(row: Mapping[str, Any]) -> Place:
    """The place of plain values."""
    return Place(**row)
