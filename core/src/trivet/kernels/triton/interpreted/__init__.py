"""Triton's interpreter as a way of execution: kernels on CPU tensors, word ``interpreted``.

It verifies indexing, masks, shapes and the algorithm of a kernel. It does not verify generated
code, races between programs or threads, launch limits, or performance.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from trivet.contracts import DeviceInfo, Execution
from trivet.errors import PluginBroken, PluginNotFound

if TYPE_CHECKING:
    from trivet.kernels.triton.interpreted.launch import Interpreter

__all__ = ["NOT_VERIFIED", "TESTED", "Interpreted", "as_interpreted", "available", "launcher"]

TESTED = ("3.6", "3.9")
"""Versions of Triton whose interpreter the corrections were tested with."""

NOT_VERIFIED = (
    "run by Triton's interpreter on the CPU: generated code, races and performance are not verified"
)


def available() -> Literal[True] | str:
    """Whether kernels can be interpreted here, or one sentence why not; imports no Triton."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if find_spec("numpy") is None:
        return "triton's interpreter needs numpy, which is not installed"
    found = _version()
    if _series(found) not in TESTED:
        return f"triton {found} is installed; its interpreter was tested with {', '.join(TESTED)}"
    return True


def launcher(kernel: Any, *, most_programs: int | None = None) -> Interpreted:
    """A kernel that runs interpreted: ``launcher(kernel)[grid](x, y, n, BLOCK=64)``.

    Args:
        kernel: what ``triton.jit`` returned, decorated with or without ``TRITON_INTERPRET``.
        most_programs: refuses a larger grid, since a program takes milliseconds.

    Raises:
        PluginNotFound: Triton or numpy is not installed.
        PluginBroken: the version is not one of ``TESTED``, or fails the check against torch.
        DomainError: the kernel is no jitted function.
    """
    interpreter = the_interpreter()
    interpreter.function(kernel)
    return Interpreted(interpreter, kernel, most_programs)


class Interpreted:
    """A kernel bound to the interpreter; index it with a grid to launch it."""

    def __init__(self, interpreter: Interpreter, kernel: Any, most: int | None) -> None:
        self._interpreter = interpreter
        self._kernel = kernel
        self._most = most

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Binds a grid: a number, a tuple of up to three, or a function of the arguments."""

        def launch(*args: Any, **kwargs: Any) -> None:
            self._interpreter.run(self._kernel, self._bounded(grid), args, kwargs)

        return launch

    def _bounded(self, grid: Any) -> Any:
        if self._most is None:
            return grid
        if callable(grid):
            return lambda given: self._bounded(grid(given))
        return limited((grid,) if isinstance(grid, int) else tuple(grid), self._most)


def as_interpreted(info: DeviceInfo) -> DeviceInfo:
    """The same device, reported as ``interpreted``, with a note of what that does not verify.

    Every plugin whose kernels run through ``launcher`` returns this from ``trivet_devices``: the
    word is what reports of the conformance kit carry as ``execution``.
    """
    return replace(info, execution=Execution.INTERPRETED, notes=(*info.notes, NOT_VERIFIED))


MOST_PROGRAMS = 4096
"""The largest grid that a variant is interpreted for: a program takes milliseconds."""


@functools.cache
def the_interpreter() -> Interpreter:
    """The one interpreter of this process, checked against torch when it is made."""
    reason = available()
    if reason is not True:
        installed = find_spec("triton") is not None and find_spec("numpy") is not None
        error = PluginBroken if installed else PluginNotFound
        fix = f"pip install numpy 'triton=={TESTED[-1]}.*'"
        raise error(f"kernels cannot be interpreted: {reason}", fix=fix)
    made: Interpreter = import_module("trivet.kernels.triton.interpreted.launch").Interpreter()
    import_module("trivet.kernels.triton.interpreted.probe").check(made)
    return made


def limited(grid: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The grid, refused where it is larger than that."""
    programs = functools.reduce(int.__mul__, grid, 1)
    if programs > most:
        msg = f"a grid of {programs} programs exceeds most_programs={most}"
        raise PluginBroken(msg, fix="call with smaller shapes (the kit: --quick), or raise it")
    return grid


def _version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return str(import_module("triton").__version__)


def _series(text: str) -> str:
    return ".".join(re.findall(r"\d+", text)[:2])
