"""One call at a time to an allocator that is used from many threads, finalisers included."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from trivet.contracts.memory import Allocator
from trivet.memory.adaptors.adaptor import Adaptor, foreign
from trivet.memory.unraisable import unraisable


class ThreadSafe(Adaptor):
    """Serialises the calls to its upstream.

    ``deallocate`` never waits: while a call is under way, in another thread or in this one (a
    garbage collection interrupts it anywhere), the buffer is put down, and whoever ends the call
    gives it back. Nothing is allocated before that.

    Args:
        upstream: the allocator that sees one call at a time.
    """

    thread_safe: ClassVar[bool] = True
    """Who stands before it, such as ``Buffers``, need not hold a lock of its own meanwhile."""

    def __init__(self, upstream: Allocator) -> None:
        self._lock = threading.Lock()
        # Keyed by identity; the tensor in it keeps the identity from being given to another one.
        self._live: dict[int, Any] = {}
        self._ended: deque[Any] = deque()
        super().__init__(upstream)

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        try:
            with self._lock:
                if self._ended:
                    self._settle()
                buffer = self._ask(nbytes, tag)
                self._live[id(buffer)] = buffer
        finally:
            if self._ended:
                self._drain()
        return buffer

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back, at once or when the call under way ends.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        known = self._live.pop(id(buffer), None)
        if known is None:
            raise foreign(self, buffer)
        if self._lock.acquire(blocking=False):
            try:
                self._give(known)
            except BaseException:
                self._live[id(buffer)] = known
                raise
            finally:
                self._lock.release()
        else:
            self._ended.append(known)
        if self._ended:
            self._drain()

    # --- under the lock ------------------------------------------------------------------------

    def _ask(self, nbytes: int, tag: str) -> torch.Tensor:
        """Asks the upstream, again where buffers were put down meanwhile."""
        while True:
            try:
                return self.upstream.allocate(nbytes, tag=tag)
            except torch.OutOfMemoryError:
                if not self._ended:
                    raise
                self._settle()

    def _give(self, known: Any) -> None:
        """Gives back what stands in ``_live`` for a buffer."""
        self.upstream.deallocate(known)

    def _settle(self) -> None:
        """Gives back what was put down; nobody is there to take an error, so it is reported."""
        while self._ended:
            try:
                self._give(self._ended.popleft())
            except Exception as error:  # noqa: BLE001  # a vendor's; reported by name
                unraisable(error, self, "while a buffer was given back later")

    # --- without it ----------------------------------------------------------------------------

    @contextmanager
    def _serial(self) -> Iterator[None]:
        """Holds the lock after giving back what was put down."""
        try:
            with self._lock:
                self._settle()
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        """Gives back what was put down, unless a call is under way, which will."""
        while self._ended and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _passed(self, name: str, inner: Any) -> Any:
        if not callable(inner):
            return inner

        def serial(*args: Any) -> Any:
            with self._serial():
                return inner(*args)

        serial.__name__ = name
        return serial
