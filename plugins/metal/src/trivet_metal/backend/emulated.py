"""Kernels on CPU tensors, through ``trivet_metal_emulator``: what they do is looked at.

``TRIVET_METAL_EMULATOR`` is ``1``, or words separated by commas: ``fast`` leaves the checks out,
``m1`` and others take the limits of that chip. Launches take the seeds of ``SEEDS`` in turn, so
that calls which are compared bit by bit are made in different orders of threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from typing import Any, Final, Literal

from trivet.contracts import Execution
from trivet.errors import ConfigError, PluginBroken, PluginNotFound
from trivet_metal import families
from trivet_metal.backend import Function

VARIABLE: Final = "TRIVET_METAL_EMULATOR"
SEEDS: Final = (0, 1, 2)
_OFF: Final = ("", "0", "false", "no", "off")
_ON: Final = ("1", "true", "yes", "on")
_SHOWN: Final = 3
_ERRORS: Final = ("CompileError", "LintError", "LaunchError", "KernelFault")
_FIX: Final = "pip install 'trivet-metal[emulator]', or a clang of version 17 or newer on PATH"


def wanted() -> bool:
    """Whether the environment asks for the emulator."""
    return os.environ.get(VARIABLE, "").lower() not in _OFF


def available() -> Literal[True] | str:
    """Whether kernels can be emulated here, or one sentence why not."""
    if find_spec("trivet_metal_emulator") is None:
        return f"the emulator is not installed: {_FIX}"
    found = import_module("trivet_metal_emulator").compiler()
    return f"the emulator has no compiler: {found}" if isinstance(found, str) else True


class EmulatedBackend:
    """Compiles with clang, runs on the CPU, and fails where a kernel did what it must not.

    Args:
        check: whether races, bounds, alignment, uninitialised reads, divergence and the bytes
            written are looked at.
        chip: whose limits hold.
    """

    execution: Final = Execution.EMULATED

    def __init__(self, *, check: bool = True, chip: str = "m1") -> None:
        self.check = check
        self.chip = chip
        self._emulator: Any = import_module("trivet_metal_emulator")
        self._errors = tuple(getattr(self._emulator, name) for name in _ERRORS)
        self._seeds = cycle(SEEDS if check else SEEDS[:1])

    def compile(self, source: str, name: str) -> Any:
        """A library of the emulator, compiled once and kept on disk by it."""
        try:
            return self._emulator.compile_shader(
                source, check=self.check, family=self.chip, name=name
            )
        except self._errors as error:
            msg = f"{name} does not compile: {in_a_line(error)}"
            raise PluginBroken(msg, fix="repair it") from error

    def limits(self) -> families.Limits:
        """Those of the chip's family."""
        return families.limits(families.family_of(self.chip) or families.OLDEST)

    def launch(
        self,
        library: Any,
        function: Function,
        args: tuple[Any, ...],
        launch: Mapping[str, Any],
        gate: tuple[int | None, bool],
    ) -> None:
        """Launches it in the next order of threads, and judges what it did."""
        library.seed = next(self._seeds)
        try:
            function(*args, **launch)
        except self._errors as error:
            raise PluginBroken(in_a_line(error), fix=f"seed {library.seed} repeats it") from error
        if not self.check:
            return
        written, divergent = gate
        stats = library.last
        if stats.divergent_simd_ops and not divergent:
            msg = f"{stats.divergent_simd_ops} SIMD operations in which some threads took no part"
            fix = "let all threads of a simdgroup reach them; a GPU may do otherwise"
            raise PluginBroken(msg, fix=fix)
        if written is not None and total(stats.bytes_written) != written:
            msg = f"a kernel wrote {total(stats.bytes_written)} bytes, its results have {written}"
            raise PluginBroken(msg, fix="write every element of a result once, and nothing else")


def in_a_line(error: Exception) -> str:
    """What is wrong and where, in one line: reports show no more of an error than its first."""
    what = str(getattr(error, "what", error))
    findings = [
        f"{f.file}:{f.line}: {f.kind}: {f.what}" for f in getattr(error, "findings", ())[:_SHOWN]
    ]
    text = f"{what}: {'; '.join(findings)}" if findings else what
    return " ".join(text.split())


def total(written: Any) -> int:
    """Bytes written to all buffers together, told as one number or one for each buffer."""
    if isinstance(written, int):
        return written
    return sum(written.values() if isinstance(written, Mapping) else written)


@dataclass(frozen=True)
class Chosen:
    """What the environment wants of the emulator.

    Args:
        check: whether what kernels do is looked at.
        chip: whose limits hold.
    """

    check: bool = True
    chip: str = "m1"


def chosen(environ: Mapping[str, str] = os.environ) -> Chosen:
    """What ``TRIVET_METAL_EMULATOR`` says.

    Raises:
        ConfigError: it has a word that means nothing.
    """
    text = environ.get(VARIABLE, "")
    words = {word.strip() for word in text.lower().split(",")} - {*_ON, *_OFF}
    chips = sorted(word for word in words if families.family_of(word))
    if len(chips) > 1 or words - {*chips, "fast"}:
        fix = "allowed: 1, or fast, or a chip such as m1, or both: fast,m3"
        raise ConfigError(f"{VARIABLE}={text!r} is not understood", fix=fix)
    return Chosen("fast" not in words, chips[0] if chips else "m1")


def backend() -> EmulatedBackend:
    """The backend of this process, as the environment wants it.

    Raises:
        ConfigError: the variable has a word that means nothing.
        PluginNotFound: there is no emulator, or no compiler for it.
    """
    if (reason := available()) is not True:
        raise PluginNotFound(reason, fix=_FIX)
    found = chosen()
    return EmulatedBackend(check=found.check, chip=found.chip)
