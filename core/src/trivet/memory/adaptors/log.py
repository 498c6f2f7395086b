"""A log of everything that is asked of an allocator, and how to play one again."""

from __future__ import annotations

import csv
import itertools
import json
import lzma
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import torch

from trivet.contracts.memory import Allocator
from trivet.errors import MemoryFault
from trivet.memory.adaptors.adaptor import Adaptor, foreign, traits_of
from trivet.memory.unraisable import noted
from trivet.plugins.describe import said, shown

_COLUMNS: Final = ("op", "id", "bytes", "tag", "stream", "time")
_LOGGED: Final = {"suspend", "resume"}
_ODD_LINE: Final = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
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
        # a return is a line's end for whoever reads, and the other one does not quote it
        self._quoted = csv.writer(sink, lineterminator="\n", quoting=csv.QUOTE_ALL)
        if form == "csv":
            self._rows.writerow(_COLUMNS)
        super().__init__(upstream)

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        try:
            buffer = self.upstream.allocate(nbytes, tag=tag)
        except torch.OutOfMemoryError as error:
            with noted(error, "the log has no line of it"):
                self._write("failed", 0, nbytes, tag)
            raise
        try:
            self._write("allocate", self._number + 1, nbytes, tag)
        except BaseException as error:
            with noted(error, "the buffer did not go back either"):
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
            (self._quoted if "\r" in tag else self._rows).writerow(astuple(entry))
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
        MemoryFault: it is no log, cannot be read, or a line is none of one; the text says which.
    """
    number, name = 0, shown(source)
    try:
        with _opened(source) as (name, file):  # for the error's text
            for line in _lines(name, file):
                number += 1
                yield _entry(line)
    except (OSError, EOFError, lzma.LZMAError) as error:
        msg = f"{name}, after entry {number}, cannot be read: {said(error)}"
        raise MemoryFault(msg, fix="a whole log that the adaptor Logging wrote") from error
    except (*_ODD_LINE, csv.Error) as error:
        msg = f"{name}: entry {max(number, 1)} is none of an allocation log: {said(error)}"
        fix = "a log that the adaptor Logging wrote, from its beginning"
        raise MemoryFault(msg, fix=fix) from error


def _lines(name: str, file: TextIO) -> Iterable[dict[str, Any]]:
    """The lines as mappings, of either form."""
    first = file.readline()
    rest = _uncut(itertools.chain([first] if first else [], file))
    if first.startswith("{"):
        return map(json.loads, rest)
    # an empty file is a log in JSON of no operation
    if first and not set(_COLUMNS[:3]) <= set(first.strip().split(",")):
        msg = f"{name}: {first[:40]!r} is none of an allocation log"
        raise MemoryFault(msg, fix="a log that the adaptor Logging wrote, from its beginning")
    return csv.DictReader(rest)


def _uncut(lines: Iterable[str]) -> Iterator[str]:
    """Lines with their ends: one that was cut may hold a smaller number than was written."""
    for line in lines:
        if not line.endswith(("\n", "\r")):
            msg = f"the line is cut: {line[:80]!r}"
            raise ValueError(msg)
        yield line


def _entry(line: dict[str, Any]) -> Entry:
    """One line; what is none raises any of the errors that ``read`` turns into one."""
    entry = Entry(
        str(line["op"]),
        int(line["id"]),
        int(line["bytes"]),
        str(line.get("tag") or ""),
        int(line.get("stream") or 0),
        int(line.get("time") or 0),
    )
    if entry.op not in _OPERATIONS or entry.bytes < 0:
        msg = f"{entry.op} of {entry.bytes} bytes"
        raise ValueError(msg)
    return entry


@contextmanager
def _opened(source: str | os.PathLike[str] | TextIO) -> Iterator[tuple[str, TextIO]]:
    if not isinstance(source, str | os.PathLike):
        yield str(getattr(source, "name", "the text")), source
        return
    path = Path(source)
    # line ends inside of tags stay as they are: csv finds those of the lines by itself
    if path.suffix == ".xz":
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            yield str(path), file
    else:
        with path.open(encoding="utf-8", newline="") as file:
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
        MemoryFault: a line gives back what no line allocated, allocates what is live, or asks for
            what there is not; or the allocator cannot do it.
    """
    buffers: dict[int, torch.Tensor] = {}
    lost: set[int] = set()
    live = peak = operations = failed = 0
    with _given_back(allocator, buffers):
        for entry in entries:
            _refuse_out_of_order(entry, buffers, lost, allocator)
            if entry.op == "allocate":
                try:
                    buffers[entry.id] = allocator.allocate(entry.bytes, tag=entry.tag)
                except torch.OutOfMemoryError:
                    failed += 1
                    lost.add(entry.id)
                    continue
                lost.discard(entry.id)
                live += entry.bytes
                peak = max(peak, live)
            elif entry.op == "failed" or entry.id in lost:
                continue
            elif entry.op == "deallocate":
                live -= buffers[entry.id].numel()
                allocator.deallocate(buffers.pop(entry.id))
            else:
                getattr(allocator, entry.op)(buffers[entry.id])
            operations += 1
            if after is not None:
                after(live)
    return Replayed(operations, failed, peak, live)


def _refuse_out_of_order(
    entry: Entry, buffers: Mapping[int, object], lost: Collection[int], allocator: Allocator
) -> None:
    known = entry.id in buffers
    if entry.op not in _OPERATIONS:
        msg, fix = f"the log has the operation {entry.op!r}", f"one of {', '.join(_OPERATIONS)}"
    elif entry.op == "allocate" and known:
        msg, fix = f"the log allocates buffer {entry.id}, which is live", "play one log at a time"
    elif entry.op not in {"allocate", "failed"} and not known and entry.id not in lost:
        msg = f"the log has {entry.op} of buffer {entry.id}, which is not live"
        fix = "play the whole log, in its order"
    elif entry.op != "failed" and not callable(getattr(allocator, entry.op, None)):
        msg = f"{type(allocator).__qualname__} cannot {entry.op}, as the log has it"
        fix = "play it against an allocator of the same abilities"
    else:
        return
    raise MemoryFault(msg, fix=fix)


@contextmanager
def _given_back(allocator: Allocator, buffers: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Gives all buffers back at its end; what fails then does not hide what failed before."""
    try:
        yield
    except BaseException as error:
        for second in _all_given_back(allocator, buffers):
            error.add_note(f"a buffer did not go back: {said(second)}")
        raise
    for failure in _all_given_back(allocator, buffers):
        raise failure


def _all_given_back(
    allocator: Allocator, buffers: Mapping[int, torch.Tensor]
) -> Iterator[Exception]:
    """Gives each of them back, whatever the others do; what they did."""
    failures = []
    for buffer in buffers.values():
        try:
            allocator.deallocate(buffer)
        except Exception as error:  # noqa: BLE001  # of any allocator; the caller tells it
            failures.append(error)
    return iter(failures)
