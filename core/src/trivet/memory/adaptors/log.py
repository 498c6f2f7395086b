"""A log of everything that is asked of an allocator, and how to play one again."""

from __future__ import annotations

import csv
import itertools
import json
import lzma
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault
from trivet.memory.adaptors.adaptor import Adaptor, foreign, traits_of

_COLUMNS: Final = ("op", "id", "bytes", "tag", "stream", "time")
_LOGGED: Final = {"suspend", "resume"}
_OPERATIONS: Final = ("allocate", "deallocate", "suspend", "resume", "failed")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log.

    Args:
        op: allocate, deallocate, suspend, resume; ``failed`` is an allocation that raised.
        id: number of the buffer, from 1; 0 of one that failed.
        bytes: its size.
        tag: what it is for.
        stream: number of the stream that was current; 0 where the device has none.
        time: nanoseconds of the clock, 0 where none was kept.
    """

    op: str
    id: int
    bytes: int
    tag: str = ""
    stream: int = 0
    time: int = 0


class Logging(Adaptor):
    """Writes a line for every operation, after it was done.

    It is as safe from threads as its upstream. Lines are written at once and flushed by whoever
    owns the stream; what its ``write`` raises reaches the caller, after an allocation was undone.

    Args:
        upstream: the allocator that is asked.
        sink: an open text file.
        form: ``"csv"`` with a head line, or ``"jsonl"``: one object a line.
        clock: nanoseconds; None writes 0, so that two runs give the same text.
    """

    def __init__(
        self,
        upstream: Allocator,
        sink: TextIO,
        *,
        form: Literal["csv", "jsonl"] = "csv",
        clock: Callable[[], int] | None = time.monotonic_ns,
    ) -> None:
        self._sink, self._form, self._clock = sink, form, clock
        self._device = traits_of(upstream, "Logging").device
        self._known: dict[int, tuple[torch.Tensor, int, str]] = {}
        self._number = 0
        self._rows = csv.writer(sink, lineterminator="\n")
        if form == "csv":
            self._rows.writerow(_COLUMNS)
        super().__init__(upstream)

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        try:
            buffer = self.upstream.allocate(nbytes, tag=tag)
        except torch.OutOfMemoryError:
            self._write("failed", 0, nbytes, tag)
            raise
        try:
            self._write("allocate", self._number + 1, nbytes, tag)
        except BaseException:
            self.upstream.deallocate(buffer)
            raise
        self._number += 1
        self._known[id(buffer)] = buffer, self._number, tag
        return buffer

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        known = self._known.pop(id(buffer), None)
        if known is None:
            raise foreign(self, buffer)
        try:
            self.upstream.deallocate(buffer)
        except BaseException:
            self._known[id(buffer)] = known
            raise
        self._write("deallocate", known[1], buffer.numel(), known[2])

    def _passed(self, name: str, inner: Any) -> Any:
        if name not in _LOGGED:
            return inner

        def logged(buffer: torch.Tensor) -> None:
            known = self._known.get(id(buffer))
            if known is None:
                raise foreign(self, buffer)
            inner(buffer)
            self._write(name, known[1], buffer.numel(), known[2])

        logged.__name__ = name
        return logged

    def _write(self, op: str, number: int, nbytes: int, tag: str) -> None:
        when = self._clock() if self._clock else 0
        entry = Entry(op, number, nbytes, tag, _stream(self._device), when)
        if self._form == "csv":
            self._rows.writerow(astuple(entry))
        else:
            self._sink.write(json.dumps(asdict(entry)) + "\n")


def _stream(device: torch.device) -> int:
    """The number of the stream that is current."""
    if device.type in {"cpu", "meta"} or not torch.accelerator.is_available():
        return 0
    return int(torch.accelerator.current_stream(device).stream_id)


def read(source: str | os.PathLike[str] | TextIO) -> Iterator[Entry]:
    """The lines of a log, of either form.

    Args:
        source: a path, unpacked where it ends in ``.xz``, or an open text file, which is read from
            where it stands and stays open.

    Raises:
        MemoryFault: it is no log, or a line is none of one; the text says which.
    """
    with _opened(source) as (path, file):
        first = file.readline()
        heads = set(first.strip().split(","))  # an empty file is a log in JSON of no operation
        if first and not first.startswith("{") and not {"op", "id", "bytes"} <= heads:
            msg = f"{path}: {first[:40]!r} is none of an allocation log"
            raise MemoryFault(msg, fix="a log that the adaptor Logging wrote, from its beginning")
        rest = itertools.chain([first], file)
        lines: Iterable[dict[str, Any]]
        lines = map(json.loads, rest) if first.startswith("{") else csv.DictReader(rest)
        number = 0
        try:
            for number, line in enumerate(lines, 1):  # noqa: B007  # for the error's text
                yield Entry(
                    str(line["op"]),
                    int(line["id"]),
                    int(line["bytes"]),
                    str(line.get("tag") or ""),
                    int(line.get("stream") or 0),
                    int(line.get("time") or 0),
                )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: entry {number} is none of an allocation log: {error!r}"
            raise MemoryFault(msg, fix="a log that the adaptor Logging wrote") from error


@contextmanager
def _opened(source: str | os.PathLike[str] | TextIO) -> Iterator[tuple[str, TextIO]]:
    if not isinstance(source, str | os.PathLike):
        yield str(getattr(source, "name", "the text")), source
        return
    path = Path(source)
    packed = path.suffix == ".xz"
    with lzma.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as file:
        yield str(path), file


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did: operations, and the most bytes that were live.

    Args:
        operations: lines that were played.
        failed: allocations that did not fit; their later lines were left out.
        peak_bytes: the most that was live in buffers, as they were asked for.
        live_bytes: what the log never gave back; the replay did, at its end.
    """

    operations: int
    failed: int
    peak_bytes: int
    live_bytes: int


def replay(
    entries: Iterable[Entry], allocator: Allocator, *, after: Callable[[int], object] | None = None
) -> Replayed:
    """Plays a log against an allocator; streams and times are not followed.

    Args:
        entries: what ``read`` returned.
        allocator: any.
        after: called after every line with the bytes that are live.

    Raises:
        MemoryFault: a line gives back what no line allocated, or asks for what there is not.
    """
    buffers: dict[int, torch.Tensor] = {}
    lost: set[int] = set()
    live = peak = operations = failed = 0
    try:
        for entry in entries:
            if entry.op == "allocate":
                try:
                    buffers[entry.id] = allocator.allocate(entry.bytes, tag=entry.tag)
                except torch.OutOfMemoryError:
                    failed += 1
                    lost.add(entry.id)
                    continue
                live += entry.bytes
                peak = max(peak, live)
            elif entry.op == "failed" or entry.id in lost:
                continue
            else:
                if entry.op not in {"deallocate", *_LOGGED}:
                    msg = f"the log has the operation {entry.op!r}"
                    raise MemoryFault(msg, fix=f"one of {', '.join(_OPERATIONS)}")
                if entry.id not in buffers:
                    msg = f"the log has {entry.op} of buffer {entry.id}, which is not live"
                    raise MemoryFault(msg, fix="play the whole log, in its order")
                if entry.op == "deallocate":
                    allocator.deallocate(buffers.pop(entry.id))
                    live -= entry.bytes
                else:
                    getattr(allocator, entry.op)(buffers[entry.id])
            operations += 1
            if after is not None:
                after(live)
    finally:
        for buffer in buffers.values():
            allocator.deallocate(buffer)
    return Replayed(operations, failed, peak, live)
