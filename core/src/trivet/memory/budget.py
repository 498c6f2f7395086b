"""The budget of a device: limits over its account, who gives way, and who is told in time."""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trivet.errors import ConfigError, OutOfMemory
from trivet.memory.ledger import Ledger
from trivet.memory.sizes import limit
from trivet.plugins.describe import shown

_log: Final = logging.getLogger("trivet.memory")


@dataclass(frozen=True, slots=True)
class Pressure:
    """What a pressure callback is told.

    Args:
        high: True when use rose to the threshold, False when it fell to where it is over.
        used_bytes: what was accounted at that moment.
        limit_bytes: the limit that the threshold is a part of.
    """

    high: bool
    used_bytes: int
    limit_bytes: int


@dataclass(slots=True, eq=False)
class _Reclaimable:
    name: str
    priority: int
    release: Callable[[int], int]
    counted: bool


@dataclass(slots=True, eq=False)
class _Threshold:
    at: float
    clear: float
    call: Callable[[Pressure], None]
    high: bool = field(default=False)


class Budget:
    """Limits of one device, and what happens near them; made with ``dev.memory``.

    The hard limit is the ledger's: what exceeds it is refused, after those who can give way were
    asked. Above the soft limit they are asked as well, and what does not go is admitted. Nobody is
    called while a lock of trivet is held, so callbacks may allocate and release; they may be called
    from any thread that accounts, and from two at once.

    Args:
        ledger: the account that is limited.
    """

    __slots__ = (
        "__weakref__", "_again", "_asking", "_fruitless", "_ledger", "_lock", "_reclaimables",
        "_soft", "_telling", "_thresholds", "after",
    )  # fmt: skip

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._soft: int | None = None
        self._fruitless = 0  # above this much in use the soft limit asks again
        self._lock = threading.RLock()  # a finaliser that releases may interrupt whoever holds it
        self._reclaimables: list[_Reclaimable] = []
        self._thresholds: list[_Threshold] = []
        self._telling = self._again = False
        self._asking = threading.local()
        self.after: Callable[[], None] | None = None
        ledger.watcher = self

    @property
    def hard_bytes(self) -> int | None:
        """More than this raises ``OutOfMemory``; None is no limit."""
        return self._ledger.limit_bytes

    @hard_bytes.setter
    def hard_bytes(self, nbytes: int | None) -> None:
        self._ledger.limit_bytes = limit(nbytes, "hard_bytes")
        self._notice()

    @property
    def soft_bytes(self) -> int | None:
        """Above this, those who can give way are asked to; None is no limit."""
        return self._soft

    @soft_bytes.setter
    def soft_bytes(self, nbytes: int | None) -> None:
        self._soft = limit(nbytes, "soft_bytes")
        self._fruitless = 0
        self._above_soft()

    def register_reclaimable(
        self, name: str, priority: int, release: Callable[[int], int], *, counted: bool = True
    ) -> Callable[[], None]:
        """Name something that can give memory back.

        Args:
            name: for people; one name is registered once.
            priority: lower ones are asked first; equal ones in the order of registration.
            release: is given how many bytes are wanted and returns how many it gave back; 0 when
                it has nothing. It does not wait for anybody who waits for memory.
            counted: what it gives back is in the ledger. What is not (a cache of the device's
                allocator) is asked for only when the device itself is full.

        Returns:
            The function that takes it out again.

        Raises:
            ConfigError: the name is taken, the priority is no number, or nothing can be called.
        """
        odd: Any = priority  # not all engines are typed
        if not isinstance(odd, int) or not callable(release):
            how = f"the priority {shown(priority)} and is asked by {shown(release)}"
            msg = f"{shown(name)} has {how}"
            raise ConfigError(msg, fix="a whole number, and a function of the bytes wanted")
        added = _Reclaimable(name, priority, release, counted)
        with self._lock:
            if any(one.name == name for one in self._reclaimables):
                msg = f"something that gives memory back is named {name!r} already"
                raise ConfigError(msg, fix="take the other one out, or choose another name")
            # to the right of its equals: there, registration decides
            bisect.insort(self._reclaimables, added, key=lambda one: one.priority)
            self._fruitless = 0

        def remove() -> None:
            with self._lock:
                if added in self._reclaimables:
                    self._reclaimables.remove(added)

        return remove

    def on_pressure(
        self, call: Callable[[Pressure], None], *, at: float = 0.9, clear: float | None = None
    ) -> Callable[[], None]:
        """Have a function called when use rises to a part of the hard limit, and when that is over.

        Args:
            call: is told which of the two; it does not raise, what it raises is only logged.
            at: part of ``hard_bytes``, above 0 and at most 1. Without a hard limit nothing is
                called.
            clear: part at which it is over; the gap keeps it from being called back and forth.
                A tenth below ``at`` when None.

        Returns:
            The function that takes it out again.

        Raises:
            ConfigError: ``at`` or ``clear`` is no such part.
        """
        clear = _parts(call, at, clear)
        added = _Threshold(at, clear, call)
        with self._lock:
            self._thresholds.append(added)
        self._notice()

        def remove() -> None:
            with self._lock:
                if added in self._thresholds:
                    self._thresholds.remove(added)

        return remove

    def reclaim(self, nbytes: int, *, counted: bool = False) -> Mapping[str, int]:
        """Ask for memory, in order, each at most once, until there is enough.

        Called from within a ``release`` it asks nobody.

        Args:
            nbytes: how much is wanted.
            counted: ask only those whose memory is in the ledger.

        Returns:
            What each of those asked gave back; one that raised is logged and gave 0.
        """
        given: dict[str, int] = {}
        if getattr(self._asking, "now", False):
            return given
        with self._lock:
            asked = [one for one in self._reclaimables if one.counted or not counted]
        self._asking.now = True
        try:
            for one in asked:
                left = nbytes - sum(given.values())
                if left <= 0:
                    break
                given[one.name] = _given(one, left)
        finally:
            self._asking.now = False
        return given

    # --- what the ledger calls, outside of its lock --------------------------------------------

    def make_room(self, error: OutOfMemory) -> bool:
        """Asks for what is missing under the hard limit; whether anything was given back."""
        most = self._ledger.limit_bytes
        if most is None:
            return True  # it was lifted since
        # more than the error says where the limit was lowered below what is in use
        missing = error.requested_bytes + self._ledger.used_bytes - most
        given = self.reclaim(missing, counted=True)
        if given:
            who = ", ".join(f"{name} gave {n} bytes" for name, n in given.items())
            error.add_note(f"asked to give way: {who}")
        return missing <= 0 or any(given.values())

    def added(self, tag: str) -> None:
        """Looks at the soft limit and the thresholds after an amount was added."""
        del tag
        self._above_soft()
        self._notice()
        if self.after is not None:
            self.after()

    def removed(self) -> None:
        """Looks at the thresholds after an amount was released."""
        self._notice()

    def _above_soft(self) -> None:
        soft = self._soft
        if soft is None or not self._reclaimables:
            return
        used = self._ledger.used_bytes
        if used <= max(soft, self._fruitless):
            return
        given = self.reclaim(used - soft, counted=True)
        # Nobody had anything: ask again only when there is something more to speak of.
        self._fruitless = 0 if any(given.values()) else used + soft // 64

    def _notice(self) -> None:
        """Calls what is due; one thread at a time, so that the two calls come in order."""
        if not self._thresholds:
            return
        with self._lock:
            self._again = True
            if self._telling:
                return
            self._telling = True
        try:
            while due := self._due():
                for one, told in due:
                    _tell(one, told)
        except BaseException:
            self._telling = False
            raise

    def _due(self) -> list[tuple[_Threshold, Pressure]]:
        """Thresholds that were crossed since; empty, and no longer telling, when none was."""
        while True:
            self._again = False  # before the numbers are read: who changes them now says so again
            used, most = self._ledger.used_bytes, self._ledger.limit_bytes
            due = []
            with self._lock:
                for one in self._thresholds:
                    high = most is not None and (
                        used >= one.at * most or (one.high and used > one.clear * most)
                    )
                    if high != one.high:
                        one.high = high
                        due.append((one, Pressure(high, used, most or 0)))
                if not due and self._again:
                    continue
                self._telling = bool(due)
                return due


def _parts(call: object, at: float, clear: float | None) -> float:
    """The threshold at which pressure is over."""
    try:
        clear = 0.9 * at if clear is None else clear
        good = callable(call) and 0 < at <= 1 and 0 <= clear < at
    except TypeError:
        good = False
    if not good or clear is None:
        msg = f"pressure at {shown(at)}, over at {shown(clear)}: no thresholds of {shown(call)}"
        raise ConfigError(msg, fix="0 <= clear < at <= 1, parts of the hard limit, and a function")
    return clear


def _given(one: _Reclaimable, nbytes: int) -> int:
    try:
        return max(0, int(one.release(nbytes)))
    except Exception:  # noqa: BLE001 - an engine's function; who wants memory must not fail for it
        _log.exception("%s was asked for %d bytes and raised", one.name, nbytes)
        return 0


def _tell(one: _Threshold, told: Pressure) -> None:
    try:
        one.call(told)
    except Exception:  # noqa: BLE001 - as above
        _log.exception("a callback for memory pressure at %g raised", one.at)
