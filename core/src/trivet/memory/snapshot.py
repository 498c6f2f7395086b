"""What a running program says of its memory: one small file a process, for ``trivet memory``."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from trivet.errors import MemoryFault
from trivet.plugins.describe import clean, said, shown

if TYPE_CHECKING:
    from trivet.memory.device import DeviceMemory

SCHEMA: Final = 1
EVERY: Final = 1.0
"""Seconds between two files that are written only because something was accounted."""

_CHANGES: Final = 1024  # of the timeline, the latest
_log: Final = logging.getLogger("trivet.memory")


class Publisher:
    """Writes who holds what in this process into a folder.

    Args:
        folder: where; it is made when the first file is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memories: weakref.WeakSet[DeviceMemory] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._next = 0.0
        self._broken = False

    def add(self, memory: DeviceMemory) -> None:
        """Say what this memory holds, too, and record its changes from now on."""
        self._memories.add(memory)
        memory.ledger.record(True)

    def later(self) -> None:
        """Write unless it was done within ``EVERY`` seconds; a folder that fails is left alone."""
        now = time.monotonic()
        if self._broken or now < self._next:
            return
        self._next = now + EVERY
        try:
            self.publish()
        except Exception as error:  # noqa: BLE001  # of the folder, or of a plugin's memory
            self._broken = True
            _log.warning("memory is no longer published: %s", said(error))

    def publish(self) -> Path:
        """Write now; the file is replaced as a whole.

        Raises:
            MemoryFault: the folder cannot be written.
        """
        self._next = time.monotonic() + EVERY
        document = _document([_device(memory) for memory in list(self._memories)])
        path = self.folder / f"{document['pid']}.json"
        part = path.with_suffix(".part")
        try:
            with self._lock:
                self.folder.mkdir(parents=True, exist_ok=True)
                part.write_text(json.dumps(document), encoding="utf-8")
                part.replace(path)
        except OSError as error:
            msg = f"{path} cannot be written: {error}"
            raise MemoryFault(msg, fix="TRIVET_MEMORY_SNAPSHOT names a folder of yours") from error
        return path


@cache
def publisher(folder: Path) -> Publisher:
    """The one publisher of this process into a folder."""
    return Publisher(folder)


def read(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What living programs say, by process; and why any file was left out.

    Files of processes that have ended are deleted. ``alive`` is None where that cannot be known:
    the file was written in another container or on another machine.
    """
    found: list[dict[str, Any]] = []
    remarks: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["schema"] != SCHEMA:
                remarks.append(f"{path.name}: of another version of trivet")
                continue
            alive = _alive(document)
            if alive is False:
                path.unlink(missing_ok=True)
                continue
            _refuse_odd(document)
            found.append(document | {"alive": alive, "age": time.time() - document["time"]})
        except FileNotFoundError:  # its reader was another one of us
            continue
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            remarks.append(f"{clean(path.name)}: {said(error)}")
    return found, remarks


_MOST: Final = 1 << 63  # bytes that no device holds
_OF_A_PROGRAM: Final[Mapping[str, tuple[type, ...]]] = {
    "pid": (int,), "program": (str,), "time": (int, float), "devices": (list,),
}  # fmt: skip
_OF_A_DEVICE: Final[Mapping[str, tuple[type, ...]]] = {
    "device": (str,), "held": (list,), "timeline": (list,), "info": (dict,),
    "accounted_bytes": (int,), "peak_bytes": (int,),
    "outside_bytes": (int, NoneType), "unseen_bytes": (int, NoneType),
    "soft_bytes": (int, NoneType), "hard_bytes": (int, NoneType),
}  # fmt: skip


def _refuse_odd(document: Mapping[str, Any]) -> None:
    """Raises what a document that this version would not write raises when it is shown."""
    _refuse_others(document, _OF_A_PROGRAM)
    if not math.isfinite(document["time"]):
        msg = f"time is {document['time']}"
        raise ValueError(msg)
    for one in document["devices"]:
        _refuse_others(one, _OF_A_DEVICE)
        for held in one["held"]:
            _refuse_others(held, {"tag": (str,), "tier": (str,), "nbytes": (int,)})
        for when, tag, change in one["timeline"]:
            line = {"when": when, "tag": tag, "change": change}
            _refuse_others(line, {"when": (int, float), "tag": (str,), "change": (int,)})


def _refuse_others(mapping: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> None:
    for name, known in types.items():
        value = mapping[name]
        if type(value) not in known or (type(value) is int and abs(value) >= _MOST):
            msg = f"{name} is {shown(value)}"
            raise TypeError(msg)


def _document(devices: list[dict[str, Any]]) -> dict[str, Any]:
    pid = os.getpid()
    return {
        "schema": SCHEMA,
        "pid": pid,
        "started": _started(pid),
        "where": _where(),
        "program": " ".join(Path(word).name if i == 0 else word for i, word in enumerate(sys.argv)),
        "time": time.time(),
        "devices": devices,
    }


def _device(memory: DeviceMemory) -> dict[str, Any]:
    return memory.holdings().to_json() | {"timeline": memory.ledger.timeline()[-_CHANGES:]}


def _alive(document: Mapping[str, Any]) -> bool | None:
    if document["where"] != _where():
        return None
    started = _started(int(document["pid"]))
    if started is not None:
        return bool(started == document["started"])
    try:
        os.kill(int(document["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; a number is never used twice so."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _where() -> str:
    """Machine and container, within which the number of a process means one process."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink().as_posix()
    except OSError:
        namespace = ""
    return f"{os.uname().nodename if hasattr(os, 'uname') else ''} {namespace}".strip()
