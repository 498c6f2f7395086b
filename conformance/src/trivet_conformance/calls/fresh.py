"""Calls in a fresh process: nothing else was called there before."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from trivet.plugins.verification import Implementation
from trivet_conformance.calls.calling import foreign, on_cpu, results_of
from trivet_conformance.calls.layouts import Placed

SECONDS: Final = 60.0
"""Time of a call, the start of its process included."""


class NoFreshCall(Exception):
    """A call came to no result in a fresh process.

    Args:
        what: ``unknown`` (it cannot be made there), ``raised``, ``died`` or ``late``.
        text: why.
    """

    def __init__(self, what: str, text: str) -> None:
        self.what = what
        super().__init__(text)


class Server:
    """A process that forks one for every call; it makes none itself."""

    def __init__(self) -> None:
        self.paths = tuple(sys.path)
        program = Path(__file__).with_name("fresh_program.py").read_text(encoding="utf-8")
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._send(list(self.paths))

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, row: Mapping[str, Any]) -> tuple[str, Any]:
        """The answer to a request: what became of it, and a text or bytes."""
        end = time.monotonic() + SECONDS
        try:
            self._send(row)
            size = int.from_bytes(self._read(8, end), "big")
            made: tuple[str, Any] = pickle.loads(self._read(size, end))  # noqa: S301 - our own
        except TimeoutError:
            self.close()
            return "late", f"it does not end within {SECONDS:g} s"
        except (BrokenPipeError, EOFError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)  # its own status, not that of being killed
            self.close()
            return "died", f"status {self._process.returncode}"
        return made

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _send(self, value: Any) -> None:
        data = pickle.dumps(value)
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.write(len(data).to_bytes(8, "big") + data)
        self._process.stdin.flush()

    def _read(self, size: int, end: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        source, found = self._process.stdout.fileno(), b""
        while len(found) < size:
            if not select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError
            data = os.read(source, size - len(found))
            if not data:
                raise EOFError
            found += data
        return found


_held: list[Server] = []
"""The one server of this process; it lasts as long, for it never has state of a call."""


def _server() -> Server:
    if _held and not (_held[0].alive and _held[0].paths == tuple(sys.path)):
        close()
    if not _held:
        _held.append(Server())
    return _held[0]


@atexit.register
def close() -> None:
    """Ends the server, where there is one."""
    while _held:
        _held.pop().close()


def packed(implementation: Implementation, placed: Placed) -> bytes:
    """The arguments of a call as bytes.

    Raises:
        NoFreshCall: they cannot be carried to another process.
    """
    if implementation.claim.opaque:
        raise NoFreshCall("unknown", "its packs cannot be carried to another process")
    positional, keyword = _arguments(implementation, placed)
    made = io.BytesIO()
    carried = {
        "positional": [in_host_memory(v) for v in positional],
        "keyword": in_host_memory(keyword),
    }
    torch.save(carried, made)
    return made.getvalue()


def fresh_call(
    implementation: Implementation,
    kind: str,
    given: bytes,
    device: torch.device,
) -> list[Any]:
    """The results of a call that is the first one of its process, on the CPU.

    Args:
        implementation: what is called.
        kind: the device's kind; there the implementation is looked for first.
        given: the arguments, from ``packed``.
        device: where the call is made; arguments are carried through the host.

    Raises:
        NoFreshCall: it came to no result; the text says why.
    """
    op, form, function = implementation.operator, implementation.form, implementation.function
    row = {
        "provider": implementation.provider,
        "operator": op.name,
        "form": form,
        "kind": kind,
        "module": getattr(function, "__module__", ""),
        "name": getattr(function, "__qualname__", ""),
        "threads": foreign(torch.get_num_threads),
        "given": given,
        "device": str(device),
    }
    what, answer = _asked(row, device.type)
    if what != "made":
        raise NoFreshCall(what, answer)
    made = torch.load(io.BytesIO(answer), weights_only=False)
    names = op.signature.names()
    after = dict(zip(names, made["given"]["positional"], strict=True)) | made["given"]["keyword"]
    return on_cpu(results_of(op, form, made["returned"], after))


_unforkable: set[str] = set()
"""Types of devices that a fork does not reach: their driver was started before it."""


def _asked(row: Mapping[str, Any], kind: str) -> tuple[str, Any]:
    """What a fork of the server answers; where that may be the fork's fault, a whole process."""
    if kind not in _unforkable:
        what, answer = _server().ask({**row, "fork": True})
        if kind == "cpu" or what in ("made", "unknown"):
            return what, answer
        if what == "unforkable":
            _unforkable.add(kind)
    what, answer = _server().ask({**row, "fork": False})
    close()  # that process has made its call
    _server()  # the next one imports what it needs meanwhile
    return what, answer


def in_host_memory(value: Any) -> Any:
    """The same values in host memory; what lies there already keeps its layout."""
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "cpu" else value.cpu()
    if isinstance(value, dict):
        return {k: in_host_memory(v) for k, v in value.items()}
    return type(value)(map(in_host_memory, value)) if isinstance(value, (list, tuple)) else value


def _arguments(implementation: Implementation, placed: Placed) -> tuple[list[Any], dict[str, Any]]:
    names = implementation.operator.signature.names()
    keyword = {"out": placed.arguments["out"]} if implementation.form == "out" else {}
    return [placed.arguments[name] for name in names], keyword
