"""Limit, statistics, tracking, retries and events in one layer, at the price of one."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from trivet.contracts.memory import Allocator, Stats, StatsSource
from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.adaptors.adaptor import foreign
from trivet.memory.adaptors.counts import Counts, Frame, Outstanding
from trivet.memory.adaptors.threads import ThreadSafe
from trivet.memory.ledger import Ledger, Token
from trivet.memory.sizes import label, limit, whole
from trivet.memory.unraisable import unraisable


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a buffer, and the bytes in use after it."""

    op: Literal["allocate", "deallocate"]
    number: int
    nbytes: int
    tag: str
    used_bytes: int


class Instrumented(ThreadSafe):
    """Watches an allocator; it is ``ThreadSafe``, too, since its counters need a lock anyway.

    No callback is called under a lock: each may allocate and free here. ``on_soft_limit`` and
    ``on_event`` are told afterwards; what they raise changes nothing and is reported as Python
    reports errors of finalisers. Events of two threads may reach the hook in either order.

    Args:
        upstream: the allocator that is watched.
        limit_bytes: more than this in use raises ``OutOfMemory`` before the upstream is asked;
            it may be changed at any time.
        soft_limit_bytes: passing it calls ``on_soft_limit``.
        on_soft_limit: called with the bytes in use and the soft limit.
        on_failure: called with bytes and tag of an allocation that failed, for the limit or in
            the upstream. True tries again; False, or the last retry, raises the error. A failure
            inside the callback is not handed to it.
        retries: how often one allocation is tried again.
        on_event: called with an ``Event`` after every change.
        ledger: an account that every buffer is booked into, which may refuse it.
        stacks: keep where each live buffer was allocated; costs tens of microseconds a buffer.
    """

    def __init__(
        self,
        upstream: Allocator,
        *,
        limit_bytes: int | None = None,
        soft_limit_bytes: int | None = None,
        on_soft_limit: Callable[[int, int], object] | None = None,
        on_failure: Callable[[int, str], bool] | None = None,
        retries: int = 8,
        on_event: Callable[[Event], object] | None = None,
        ledger: Ledger | None = None,
        stacks: bool = False,
    ) -> None:
        super().__init__(upstream)
        self._limit = limit(limit_bytes, "limit_bytes")
        self._soft_limit = limit(soft_limit_bytes, "soft_limit_bytes")
        self._on_soft_limit, self._on_failure, self._on_event = on_soft_limit, on_failure, on_event
        self._retries, self._ledger, self._stacks = retries, ledger, stacks
        self._used = self._number = 0
        self._frames = [Frame()]
        self._frame = self._frames[0]
        self._tags: dict[str, list[int]] = {}
        self._untold: deque[Callable[[], object]] = deque()
        self._asking: set[int] = set()  # threads inside on_failure

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        if type(nbytes) is not int or nbytes < 0:
            nbytes = whole(nbytes, "a buffer of {} bytes")
        if type(tag) is not str:
            label(tag)
        left = self._retries
        while True:
            try:
                if self._ledger is not None:
                    buffer = self._booked(self._ledger, nbytes, tag)
                else:
                    with self._lock:
                        buffer = self._take(nbytes, tag, None)
                break
            except torch.OutOfMemoryError:
                if left > 0 and self._again(nbytes, tag):
                    left -= 1
                    continue
                with self._lock:
                    self._frame.failures += 1
                raise
            finally:
                if self._ended or self._untold:
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
        if self._ended or self._untold:
            self._drain()

    @property
    def limit_bytes(self) -> int | None:
        """More than this in use is refused; None is no limit."""
        return self._limit

    @limit_bytes.setter
    def limit_bytes(self, nbytes: int | None) -> None:
        self._limit = limit(nbytes, "limit_bytes")

    @property
    def soft_limit_bytes(self) -> int | None:
        """Passing this calls ``on_soft_limit``; None is no limit."""
        return self._soft_limit

    @soft_limit_bytes.setter
    def soft_limit_bytes(self, nbytes: int | None) -> None:
        self._soft_limit = limit(nbytes, "soft_limit_bytes")

    @property
    def used_bytes(self) -> int:
        """What is live now."""
        return self._used

    def counts(self) -> Counts:
        """Bytes and calls since the start, or since the innermost ``push``."""
        with self._serial():
            return self._frame.counts(self._tags)

    def push(self) -> None:
        """Starts a scope with counters of its own."""
        with self._serial():
            self._frame = Frame()
            self._frames.append(self._frame)

    def pop(self) -> Counts:
        """Ends the innermost scope; what it counted, which also counts in the one around it.

        Raises:
            MemoryFault: there is none.
        """
        with self._serial():
            if len(self._frames) == 1:
                raise MemoryFault("no scope of counters is open", fix="push before pop")
            inner = self._frames.pop()
            self._frame = self._frames[-1]
            self._frame.absorb(inner)
            return inner.counts(self._tags)

    @contextmanager
    def scope(self) -> Iterator[list[Counts]]:
        """Counts what happens inside; the list holds the counts once it has ended."""
        found: list[Counts] = []
        self.push()
        try:
            yield found
        finally:
            found.append(self.pop())

    def outstanding(self) -> list[Outstanding]:
        """Every live buffer, in the order in which they were allocated."""
        with self._serial():
            known = sorted(self._live.values(), key=lambda record: int(record[3]))
        return [Outstanding(number, size, tag, where) for _, size, tag, number, where, _ in known]

    def stats(self) -> Stats:
        """What the upstream counts, where it does; the account's fields are of this allocator."""
        with self._serial():
            below = self.upstream.stats() if isinstance(self.upstream, StatsSource) else Stats()
            peak, current = 0, 0
            for frame in self._frames:
                peak, current = max(peak, current + frame.peak), current + frame.current
            tags = {tag: now for tag, (now, _, _) in self._tags.items() if now}
        return replace(below, accounted_bytes=current, max_accounted_bytes=peak, by_tag=tags)

    # --- under the lock ------------------------------------------------------------------------

    def _take(self, nbytes: int, tag: str, token: Token | None) -> torch.Tensor:
        if self._ended:
            self._settle()
        before = self._used
        used = before + nbytes
        most = self._limit
        if most is not None and used > most:
            raise self._beyond(nbytes, tag, most)
        buffer = self._ask(nbytes, tag)
        self._number = number = self._number + 1
        where = _stack() if self._stacks else None
        self._live[id(buffer)] = buffer, nbytes, tag, number, where, token
        # _ask may have given back what was put down, so that the sum is taken again
        self._used = used = self._used + nbytes
        frame = self._frame
        frame.allocations += 1
        frame.total += nbytes
        frame.current = current = frame.current + nbytes
        if current > frame.peak:  # noqa: PLR1730  # max() costs a call
            frame.peak = current
        counted = self._tags.get(tag)
        if counted is None:
            self._tags[tag] = [nbytes, nbytes, 1]
        else:
            counted[0] = current = counted[0] + nbytes
            if current > counted[1]:  # noqa: PLR1730  # as above
                counted[1] = current
            counted[2] += 1
        if self._on_event is not None:
            self._note("allocate", number, nbytes, tag)
        soft, told = self._soft_limit, self._on_soft_limit
        if soft is not None and told is not None and used > soft >= before:
            self._untold.append(lambda: told(used, soft))
        return buffer

    def _give(self, known: Any) -> None:
        buffer, nbytes, tag, number, _, token = known
        self.upstream.deallocate(buffer)
        self._used -= nbytes
        frame = self._frame
        frame.deallocations += 1
        frame.current -= nbytes
        self._tags[tag][0] -= nbytes
        if token is not None:
            self._untold.append(token.release)  # which may call who watches the account
        if self._on_event is not None:
            self._note("deallocate", number, nbytes, tag)

    def _note(
        self, op: Literal["allocate", "deallocate"], number: int, nbytes: int, tag: str
    ) -> None:
        hook, event = self._on_event, Event(op, number, nbytes, tag, self._used)
        if hook is not None:
            self._untold.append(lambda: hook(event))

    def _beyond(self, nbytes: int, tag: str, most: int) -> OutOfMemory:
        free = max(0, most - self._used)
        return OutOfMemory(
            f"{nbytes} bytes ({tag or 'no tag'}) exceed the limit, {self._used} are in use",
            requested_bytes=nbytes,
            free_bytes=free,
            limit_bytes=most,
            tag=tag,
            retryable=nbytes <= most,
            fix="free something, or raise limit_bytes",
        )

    # --- without it ----------------------------------------------------------------------------

    def _booked(self, ledger: Ledger, nbytes: int, tag: str) -> torch.Tensor:
        """A buffer that is in the account, who watches which may allocate and free here."""
        if self._ended:  # still in the account
            with self._serial():
                pass
        token = ledger.reserve(nbytes, tag)
        try:
            with self._lock:
                buffer = self._take(nbytes, tag, token)
        except BaseException:
            token.release()
            raise
        token.confirm()
        return buffer

    def _again(self, nbytes: int, tag: str) -> bool:
        """Whether the failure callback wants another try; in it, there is none."""
        me = threading.get_ident()
        if self._on_failure is None or me in self._asking:
            return False
        self._asking.add(me)
        try:
            return bool(self._on_failure(nbytes, tag))
        finally:
            self._asking.discard(me)

    def _drain(self) -> None:
        """As ever, then calls the hooks for what happened."""
        super()._drain()
        while self._untold:
            try:
                call = self._untold.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                call()
            except Exception as error:  # noqa: BLE001  # a hook's; reported by name
                unraisable(error, self, "in a hook")


def _stack() -> traceback.StackSummary:
    """Where the caller of the allocator is, innermost first."""
    frames = traceback.walk_stack(None)
    return traceback.StackSummary.extract(frames, limit=32, lookup_lines=False)
