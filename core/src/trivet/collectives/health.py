"""Whether a group can still be used, and what the errors of backends and vendors mean."""

from __future__ import annotations

import copy
import re
from threading import Event
from typing import Final

from trivet.errors import (
    CommAborted,
    CommArgumentError,
    CommError,
    CommTimeout,
    CommUnsupported,
    PeerLost,
)

# Parts of what backends say -> what it is, and what to do. They raise one type for everything.
_MEANINGS: Final = (
    (
        CommTimeout,
        ("timed out", "timeout"),
        "see where the other ranks are (trivet comm dump), or open the group with timeout=",
    ),
    (
        PeerLost,
        ("closed", "reset by peer", "not connected", "broken pipe", "refused", "remote process"),
        "read the output of the ranks that ended; go on with shrink(), or start again",
    ),
)

_NOISE: Final = re.compile(r"^\[\S+:\d+\] | This is typically caused .*")
"""Places in sources, and advice that is ours to give."""

HARMLESS: Final = (CommArgumentError, CommUnsupported)
"""Errors that are raised before anything is communicated."""


class Health:
    """The state of one group on this rank; the first failure ends it.

    Args:
        where: how errors call the group.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.closed = False
        self.failure: CommError | None = None
        self.aborted = Event()

    def require(self) -> None:
        """Raise what ended the group, when it was closed or failed before.

        Raises:
            CommError: of the class of the first failure.
        """
        if self.closed:
            raise CommArgumentError(f"{self.where} was closed", fix="open it again")
        if self.failure is not None:
            again = copy.copy(self.failure)
            again.what = f"{self.where} failed before: {self.failure.what}"
            again.fix = "go on with shrink() or a new group; close() this one"
            raise again from self.failure

    def fail(self, error: CommError) -> CommError:
        """Record the failure of a call; what ended the group before wins."""
        if self.failure is None:
            self.failure = error
        return error

    def check_aborted(self) -> None:
        """Raise ``CommAborted`` once ``abort`` was called."""
        if self.aborted.is_set():
            raise CommAborted(f"{self.where} was aborted")


def meaning(error: Exception, provider: str) -> CommError:
    """What somebody else's exception is in our terms; our own ones are what they are."""
    if isinstance(error, CommError):
        return error
    said = _NOISE.sub("", str(error).partition("\n")[0]) or type(error).__name__
    lower = said.lower()
    for kind, parts, fix in _MEANINGS:
        if any(part in lower for part in parts):
            return kind(f"{provider} says: {said}", fix=fix)
    return CommError(f"{provider} raises {type(error).__name__}: {said}")
