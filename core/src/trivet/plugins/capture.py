"""Keeps what foreign code prints away from standard output, so that commands can be piped."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import TextIO

LIMIT = 2000
"""Characters of a plugin's output that are kept for the report."""

_open: list[tuple[int, int | None, TextIO]] = []
"""Of each open block: its thread, the descriptor and the stream that it gives back."""


class Captured:
    """What was printed; ``text`` is complete once the block has ended."""

    def __init__(self) -> None:
        self.text = ""


@contextlib.contextmanager
def stdout(captured: Captured) -> Iterator[None]:
    """Captures standard output of the block, of Python code and of native libraries alike.

    Descriptor 1 belongs to the process: what another thread prints meanwhile is captured too,
    and ends up in the report instead of being lost.
    """
    # in memory where the system can: the first search for a folder of temporary files holds a lock
    # that a fork in another thread would leave held in the child
    memory = getattr(os, "memfd_create", None)
    with os.fdopen(memory("trivet"), "w+b") if memory else tempfile.TemporaryFile() as file:
        saved = _kept()
        buffer = io.StringIO()
        block = threading.get_ident(), saved, sys.stdout
        _open.append(block)  # before descriptor 1 changes, and until it is back: a fork looks here
        try:
            if saved is not None:
                os.dup2(file.fileno(), 1)
            with contextlib.redirect_stdout(buffer):
                yield
        finally:
            if saved is not None:
                os.dup2(saved, 1)
            _open.remove(block)
            if saved is not None:
                os.close(saved)
            file.seek(0)
            native = file.read(LIMIT).decode(errors="replace")
            written = "" if buffer.closed else buffer.getvalue()
            captured.text = (written + native)[:LIMIT].strip()


def after_fork() -> None:
    """Gives a child its standard output back when blocks of other threads were open at the fork."""
    for thread, saved, stream in reversed(_open):
        if thread != threading.get_ident():
            sys.stdout = stream
            if saved is not None:
                os.dup2(saved, 1)
    _open[:] = [block for block in _open if block[0] == threading.get_ident()]


def _kept() -> int | None:
    """A copy of descriptor 1, once all is written to it; None without one."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()
    try:
        return os.dup(1)
    except OSError:  # started without standard output
        return None
