"""Errors of the emulator, and the findings that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "CompileError",
    "EmulatorError",
    "Finding",
    "KernelFault",
    "LaunchError",
    "LintError",
    "NoCompiler",
]


_SHOWN = 10


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a kernel, with its place in the `.metal` text."""

    kind: str
    """A stable name: `race`, `out-of-bounds`, `address-space`, ..."""
    what: str
    """One sentence."""
    file: str = ""
    line: int = 0
    fix: str = ""
    """What to do about it, or nothing."""
    severity: str = "error"
    """`error`, or `warning` for what runs but is not Metal of every version."""
    thread: int | None = None
    """Index of the thread within its threadgroup."""
    group: tuple[int, int, int] | None = None
    count: int = 1
    """How often it happened at this place."""
    other: tuple[str, int] | None = None
    """File and line of the other access of a race."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        fix = f"\n    fix: {self.fix}" if self.fix else ""
        return f"{place}{self.kind}: {self.what}{times}{fix}"

    def as_dict(self) -> dict[str, Any]:
        """The finding for machines."""
        return asdict(self)


class EmulatorError(Exception):
    """Root of the emulator's errors: what is wrong, and what to do about it."""

    def __init__(self, what: str, *, fix: str = "", findings: Sequence[Finding] = ()) -> None:
        self.what = what
        self.fix = fix
        self.findings = tuple(findings)
        super().__init__(what)

    def __str__(self) -> str:
        shown = self.findings[:_SHOWN]
        lines = [self.what, *(f"  {finding}" for finding in shown)]
        if len(shown) < len(self.findings):
            lines.append(f"  ... and {len(self.findings) - len(shown)} more")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class NoCompiler(EmulatorError):
    """No compiler that can build kernels was found."""


class CompileError(EmulatorError):
    """The text is no Metal that the emulator can compile."""


class LintError(EmulatorError):
    """The text compiles here but Apple's compiler would refuse it."""


class LaunchError(EmulatorError, ValueError, RuntimeError):
    """A launch asks for what cannot be. torch raises ValueError or RuntimeError; this is both."""


class KernelFault(EmulatorError, RuntimeError):
    """A kernel ran and did what it must not do."""
