"""What can be wrong with a report or a waiver file."""

from __future__ import annotations


class ReportError(ValueError):
    """A report, or a set of them, cannot be used as asked.

    Args:
        what: what is wrong, and where.
        fix: what to do about it.
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(f"{what}\n  fix: {fix}" if fix else what)


class WaiverError(ReportError):
    """A waiver file, or one entry of it, is not in force."""


class ShardsDiffer(ReportError):
    """Reports that should be parts of one run are not."""
