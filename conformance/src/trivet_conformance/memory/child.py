"""Another process with the same memory, for what only another process can show."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

import torch

from trivet_conformance.memory.held import TAG, pattern
from trivet_conformance.subject.leg import Leg, leg_of

SECONDS: Final = 300.0
"""Time of an answer, the start of the process included; a case has its own limit."""

_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from trivet_conformance.memory.child import main; main({number}, {recipe!r})"
)


class NoAnswer(Exception):
    """The other process raised, died, or is late; the text says which."""


class Child:
    """The other process; it ends with the block.

    Args:
        recipe: of the memory, see ``Leg``.
    """

    def __init__(self, recipe: str) -> None:
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        program = _PROGRAM.format(path=sys.path, number=number, recipe=recipe)
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(number,),
        )
        theirs.close()

    def ask(self, what: str, **given: Any) -> Any:
        """The answer to a question: the name of one of the functions below, and its arguments.

        Raises:
            NoAnswer: there is none.
        """
        try:
            self._pipe.send((what, given))
            if not self._pipe.poll(SECONDS):
                msg = f"no answer within {SECONDS:g} s"
                raise NoAnswer(msg)
            good, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            msg = f"it died with status {self.process.returncode}"
            raise NoAnswer(msg) from error
        if not good:
            raise NoAnswer(answer)
        return answer

    def end(self) -> int:
        """Lets it end as processes do; its status.

        Raises:
            NoAnswer: it does not end.
        """
        self._pipe.close()
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired as error:
            msg = f"it does not end within {SECONDS:g} s"
            raise NoAnswer(msg) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()


# --- in the other process ----------------------------------------------------------------------

_kept: list[torch.Tensor] = []
"""What nobody frees before the process ends."""


def hold(leg: Leg, sizes: list[int]) -> None:
    """Allocates and never frees."""
    for nbytes in sizes:
        _kept.append(leg.allocator.allocate(nbytes, tag=TAG))
        _kept[-1].fill_(1)


def owns(leg: Leg, nbytes: int, kind: str, number: int) -> bytes:
    """Allocates, writes a pattern and exports."""
    hold(leg, [nbytes])
    _kept[-1].copy_(pattern(nbytes, number))
    blob: bytes = leg.provided.export(_kept[-1], kind)
    return blob


def opens(leg: Leg, blob: bytes, kind: str, number: int, after: int) -> str:
    """Opens another's buffer, compares it with one pattern and writes another one."""
    found = leg.provided.open(blob, kind)
    if not isinstance(found, torch.Tensor) or found.dtype != torch.uint8:
        return f"open returns {found!r:.80}, no uint8 tensor"
    same = torch.equal(found.cpu(), pattern(found.numel(), number))
    found.copy_(pattern(found.numel(), after))
    if found.device.type != "cpu":
        torch.accelerator.synchronize(found.device)
    nbytes = found.numel()
    leg.provided.close(found)
    return f"{nbytes} bytes" if same else "it does not see what the owner wrote"


QUESTIONS: Final[Mapping[str, Callable[..., Any]]] = {f.__name__: f for f in (hold, owns, opens)}


def main(number: int, recipe: str) -> None:
    """Answers until the other end is closed."""
    pipe: Connection[Any, Any] = Connection(number)
    leg: Leg | None = None
    with contextlib.suppress(EOFError):
        while True:
            what, given = pipe.recv()
            try:
                leg = leg or leg_of(recipe)
                pipe.send((True, QUESTIONS[what](leg, **given)))
            except Exception as error:  # noqa: BLE001 - it is told to the process that asked
                pipe.send((False, f"{what} raises {type(error).__name__}: {error}"))
