"""Operations that were started: waiting for them, and what their failure means."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from trivet.contracts.collectives import Work
from trivet.errors import CommError

_POLL_SECONDS: Final = 0.001

# Parts of what backends say -> what to do. They raise one type for everything.
_HINTS: Final = (
    (("timed out", "timeout"), "see where the other ranks are, or open the group with timeout="),
    (("closed", "reset by peer", "not connected"), "a rank ended: read its output, start again"),
    (("scalar type", "unsupported", "invalid data type"), "convert to a dtype that it reduces"),
)


class Health:
    """Whether a group can still be used; the first failure while waiting ends it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.closed = False
        self.failure: CommError | None = None

    def require(self) -> None:
        """Raise ``CommError`` when the group was closed or failed before."""
        if self.closed:
            raise CommError(f"{self.where} was closed", fix="open it again")
        if self.failure is not None:
            raise CommError(
                f"{self.where} failed before: {self.failure.what}",
                fix="close it on every rank, then open it again or start again",
            ) from self.failure


@contextmanager
def reported(what: str, provider: str) -> Iterator[None]:
    """Raise ``CommError`` in place of whatever a backend or a vendor raises."""
    try:
        yield
    except CommError:
        raise
    except Exception as error:  # code of backends and vendors: named in the error below
        said = str(error).partition("\n")[0]
        lower = said.lower()
        fix = next((hint for parts, hint in _HINTS if any(p in lower for p in parts)), "")
        raise CommError(f"{what}: {provider} failed: {said}", fix=fix) from error


class Started(Work):
    """The ``Work`` of one operation.

    Args:
        what: the operation, for errors.
        provider: who does it, for errors.
        health: that of its group.
        handle: what the provider returned.
        out: what ``result`` returns; None for an operation that writes nothing.
        finish: is called once when the operation has ended well (an average divides here).
    """

    def __init__(
        self,
        what: str,
        provider: str,
        health: Health,
        handle: Work,
        *,
        out: torch.Tensor | None = None,
        finish: Callable[[], object] | None = None,
    ) -> None:
        self._what = what
        self._provider = provider
        self._health = health
        self._handle = handle
        self._out = out
        self._finish = finish
        self._done = False
        self._failure: CommError | None = None

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once."""
        return self._done or self._failure is not None or self._handle.is_completed()

    def wait(self, timeout: float | None = None) -> None:
        """Wait; once it has failed, every further wait raises the same error.

        Args:
            timeout: seconds at most; when they are over the group has failed.

        Raises:
            CommError: the operation failed or did not end in time.
        """
        if self._failure is not None:
            raise self._failure
        if self._done:
            return
        try:
            with reported(self._what, self._provider):
                self._handle.wait(timeout)
                if self._finish is not None:
                    self._finish()
        except CommError as error:
            self._failure = error
            if not (isinstance(self._handle, Meeting) and self._handle.refused):
                self._health.failure = self._health.failure or error
            raise
        self._done = True

    def result(self) -> torch.Tensor:
        """Wait, then return what was written.

        Raises:
            CommError: the operation failed, or it is one that writes nothing.
        """
        self.wait()
        if self._out is None:
            raise CommError(f"{self._what} has no result", fix="call wait()")
        return self._out


class Meeting(Work):
    """The ``Work`` of a message that moves once both ends have said the same.

    A wait for one message moves the others of its group along: both ends of an exchange may
    start two messages each before they wait for the first.

    Args:
        queue: the messages of the group that have not moved yet; adds itself.
        pair: (from, to); the messages of a pair move in the order in which they were started.
        arrived: whether the other end has spoken.
        verify: raises ``CommError`` unless both said the same.
        launch: starts the transfer.
        timeout: seconds to wait for the other end.
    """

    def __init__(
        self,
        queue: list[Meeting],
        pair: tuple[int, int],
        arrived: Callable[[], bool],
        verify: Callable[[], None],
        launch: Callable[[], Work],
        timeout: float,
    ) -> None:
        self._queue = queue
        self._pair = pair
        self._arrived = arrived
        self._verify = verify
        self._launch = launch
        self._timeout = timeout
        self._handle: Work | None = None
        self._refusal: CommError | None = None
        queue.append(self)

    @property
    def refused(self) -> bool:
        """True when both ends know that nothing will move; the group is as it was."""
        return self._refusal is not None

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once."""
        self._progress()
        return self.refused or (self._handle is not None and self._handle.is_completed())

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the other end to agree, then for the transfer."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        handle = self._agreed(deadline)
        handle.wait(None if timeout is None else max(0.0, deadline - time.monotonic()))

    def result(self) -> torch.Tensor:
        """Wait, then return what the transfer wrote."""
        return self._agreed(time.monotonic() + self._timeout).result()

    def _agreed(self, deadline: float) -> Work:
        while True:
            self._progress()
            if self._refusal is not None:
                raise self._refusal
            if self._handle is not None:
                return self._handle
            if time.monotonic() > deadline:
                raise TimeoutError("timed out: the other end did not make the matching call")
            time.sleep(_POLL_SECONDS)

    def _progress(self) -> None:
        waiting: set[tuple[int, int]] = set()
        for meeting in tuple(self._queue):
            pair = meeting._pair  # noqa: SLF001  # its own class
            # The other end may speak of two messages between two looks at them here: the second
            # must not overtake the first.
            if pair in waiting or not meeting._arrived():  # noqa: SLF001
                waiting.add(pair)
            else:
                self._queue.remove(meeting)
                meeting._settle()  # noqa: SLF001

    def _settle(self) -> None:
        try:
            self._verify()
            self._handle = self._launch()
        except CommError as error:
            self._refusal = error
