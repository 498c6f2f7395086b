"""What a process that died had written to its error stream, as far as it says why."""

from __future__ import annotations

from typing import Final

LINES: Final = 5
WIDTH: Final = 240
_BEFORE: Final = 24
"""Lines before the interpreter's own report in which a library may have said why it gave up."""

_FATAL: Final = "Fatal Python error"
_GIVES_UP: Final = ("terminate called", "what():", "Assertion", "Check failed")


def last_words(text: str) -> list[str]:
    """The lines that tell the most: a library's last ones and where the interpreter was.

    Without a report of the interpreter they are the last ones. Its list of modules says nothing.
    """
    lines = [one for line in text.splitlines() if (one := line.strip())]
    at = max((i for i, line in enumerate(lines) if line.startswith(_FATAL)), default=-1)
    if at < 0:
        return [line[:WIDTH] for line in lines[-LINES:]]
    said = [line for line in lines[max(at - _BEFORE, 0) : at] if gives_up(line)]
    frames = [line for line in lines[at + 1 :] if line.startswith("File ")]
    return [line[:WIDTH] for line in (*said[-LINES:], lines[at], *frames[:LINES])]


def gives_up(line: str) -> bool:
    """Whether a line is what a library writes before it ends the process."""
    return any(word in line for word in _GIVES_UP)


def in_short(words: list[str]) -> str:
    """The one line of them for a reason, in brackets; empty where none says why."""
    said = [line for line in words if gives_up(line)]
    what = [line.partition("what():")[2].strip() for line in said if "what():" in line]
    return f" ({(what or said)[-1]})" if said else ""
