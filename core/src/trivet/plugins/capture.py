"""Keeps what foreign code prints away from standard output, so that commands can be piped."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator

LIMIT = 2000
"""Characters of a plugin's output that are kept for the report."""


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
    with tempfile.TemporaryFile() as file:
        saved = _divert(file.fileno())
        buffer = io.StringIO()
        try:
            with contextlib.redirect_stdout(buffer):
                yield
        finally:
            if saved is not None:
                os.dup2(saved, 1)
                os.close(saved)
            file.seek(0)
            native = file.read(LIMIT).decode(errors="replace")
            written = "" if buffer.closed else buffer.getvalue()
            captured.text = (written + native)[:LIMIT].strip()


def _divert(target: int) -> int | None:
    """Points descriptor 1 at ``target``; returns a copy of the old one, or None without one."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # started without standard output
        return None
    os.dup2(target, 1)
    return saved
