"""What became of every installed plugin: one immutable line each, with the reason and a fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trivet.plugins.describe import said


class Status(StrEnum):
    """The answers that discovery can give about a plugin."""

    FOUND = "found"
    FILTERED = "filtered"
    INCOMPATIBLE = "incompatible"
    IMPORT_FAILED = "import_failed"
    NO_HARDWARE = "no_hardware"
    RAISED = "raised"
    BROKEN = "broken"
    REGISTERED_NOTHING = "registered_nothing"


FAULTS: Final = frozenset({Status.INCOMPATIBLE, Status.IMPORT_FAILED, Status.RAISED, Status.BROKEN})
"""Answers that are somebody's mistake; missing hardware or a filter is not."""


@dataclass(frozen=True)
class Line:
    """One plugin: who it is, what happened, why, and what to do.

    Args:
        plugin: name of its entry point.
        dist: its distribution.
        version: version of that distribution.
        module: value of its entry point.
        extends: device kind that it adds to, when it brings none.
        status: the answer.
        reason: why; for ``found`` what is known so far.
        fix: what to do about it.
        loaded: whether its code was imported.
        details: refused implementations and remarks.
        printed: what it wrote to standard output while it was loaded or asked.
        error: the exception, when there was one.
    """

    plugin: str
    dist: str
    version: str
    module: str
    extends: str = ""
    status: Status = Status.FOUND
    reason: str = ""
    fix: str = ""
    loaded: bool = False
    details: tuple[str, ...] = ()
    printed: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def usable(self) -> bool:
        """Whether nothing is known that speaks against it."""
        return self.status in {Status.FOUND, Status.REGISTERED_NOTHING}

    @property
    def faulty(self) -> bool:
        """Whether something is wrong with it that somebody must mend."""
        return self.status in FAULTS

    def __str__(self) -> str:
        extends = f", extends {self.extends}" if self.extends else ""
        text = f"{self.plugin} ({self.dist} {self.version}{extends}): {self.status.value}"
        text += f": {self.reason}" if self.reason else ""
        rows = [*self.details]
        if self.printed:
            rows.append(f"printed to standard output: {self.printed!r}")
        if self.fix:
            rows.append(f"fix: {self.fix}")
        return text + "".join(f"\n  {row}" for row in rows)

    def to_json(self) -> dict[str, object]:
        """Plain values; the exception as its type and text."""
        error = said(self.error) if self.error is not None else ""
        given = {"status": self.status.value, "details": list(self.details), "error": error}
        return vars(self) | given


@dataclass(frozen=True, eq=False)
class Report:
    """All lines at one moment, and remarks about the settings.

    Iterating gives the lines; ``str()`` gives the text that ``trivet doctor`` shows.
    """

    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    contract: int = 0

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, plugin: str) -> Line:
        for line in self.lines:
            if line.plugin == plugin:
                return line
        raise KeyError(plugin)

    def __str__(self) -> str:
        rows = [str(line) for line in self.lines] or ["no plugin is installed"]
        return "\n".join([*rows, *(f"note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, object]:
        """Plain values, the same in every process that sees the same installation."""
        return {
            "contract": self.contract,
            "plugins": [line.to_json() for line in self.lines],
            "notes": list(self.notes),
        }
