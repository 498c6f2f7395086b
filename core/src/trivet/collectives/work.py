"""Operations that were started: waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

from trivet.collectives.recorder import ENDED, Call
from trivet.contracts.collectives import Work
from trivet.errors import CommArgumentError, CommError, CommTimeout

_POLL_SECONDS: Final = 0.001

Fail = Callable[[BaseException, Call], CommError]


class Started:
    """One operation of a group, under way or done.

    Args:
        call: its record.
        handle: what the provider returned; None for done.
        fail: makes the group's error of whatever a provider raises.
        out: what ``result`` returns; None for an operation that writes nothing.
        finish: is called once when the operation has ended well (an average divides here).
    """

    __slots__ = ("_call", "_fail", "_failure", "_finish", "_handle", "_out")

    def __init__(
        self,
        call: Call,
        handle: Work | None,
        fail: Fail,
        out: torch.Tensor | None = None,
        finish: Callable[[], object] | None = None,
    ) -> None:
        self._call = call
        self._handle = handle
        self._fail = fail
        self._out = out
        self._finish = finish
        self._failure: CommError | None = None

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once; never blocks."""
        return self._handle is None or self._failure is not None or self._handle.is_completed()

    def wait(self, timeout: float | None = None) -> None:
        """Wait; once it has failed, every further wait raises the same error.

        On a device with streams the current stream waits, elsewhere the caller.

        Args:
            timeout: seconds at most; when they are over the group has failed. None is the
                group's own.

        Raises:
            CommError: the operation failed or did not end in time.
        """
        if self._failure is not None:
            raise self._failure
        if self._handle is None and self._finish is None:
            return
        try:
            if self._handle is not None:
                self._handle.wait(timeout)
            if self._finish is not None:
                self._finish()
        except BaseException as error:
            self._failure = self._fail(error, self._call)
            if not isinstance(error, Exception):
                raise
            raise self._failure from error
        self._call[ENDED] = time.time()
        self._handle = self._finish = None

    def result(self) -> torch.Tensor:
        """Wait, then return what was written.

        Raises:
            CommError: the operation failed, or it is one that writes nothing.
        """
        self.wait()
        if self._out is None:
            raise CommArgumentError(f"{self._call[1]} has no result", fix="call wait()")
        return self._out


class Meeting(Work):
    """The ``Work`` of a message that moves once both ends have said the same.

    A wait for one message moves the others of its group along: both ends of an exchange may
    start two messages each before they wait for the first.

    Args:
        queue: the messages of the group that have not moved yet; adds itself.
        pair: (from, to); the messages of a pair move in the order in which they were started.
        arrived: whether the other end has spoken.
        verify: raises ``GroupMismatch`` unless both said the same.
        launch: starts the transfer.
        timeout: seconds to wait for the other end.
        interrupted: raises when the group was aborted.
    """

    def __init__(
        self,
        queue: list[Meeting],
        pair: tuple[int, int],
        arrived: Callable[[], bool],
        verify: Callable[[], None],
        launch: Callable[[], Work | None],
        timeout: float,
        interrupted: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._pair = pair
        self._arrived = arrived
        self._verify = verify
        self._launch = launch
        self._timeout = timeout
        self._interrupted = interrupted
        self._launched = False
        self._handle: Work | None = None
        self.refusal: CommError | None = None
        queue.append(self)

    def is_completed(self) -> bool:
        """True when ``wait`` would return, or raise, at once."""
        self._progress()
        if self.refusal is not None:
            return True
        return self._launched and (self._handle is None or self._handle.is_completed())

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the other end to agree, then for the transfer."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        handle = self._agreed(deadline)
        if handle is not None:
            handle.wait(None if timeout is None else max(0.0, deadline - time.monotonic()))

    def _agreed(self, deadline: float) -> Work | None:
        while True:
            self._progress()
            if self.refusal is not None:
                raise self.refusal
            if self._launched:
                return self._handle
            self._interrupted()
            if time.monotonic() > deadline:
                raise CommTimeout(
                    "timed out: the other end did not make the matching call", ranks=self._pair
                )
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
            self.refusal = error
        self._launched = True
