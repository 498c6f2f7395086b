"""The account of bytes by tag: who holds how much, the peak, and a limit."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self

import torch

from trivet.errors import MemoryFault, OutOfMemory
from trivet.memory.sizes import label, limit, whole

TIMELINE: Final = 4096
"""Changes that a recording ledger keeps; older ones are dropped."""

_TRIES: Final = 4  # of one amount: others may take what was made free for it


class Watcher(Protocol):
    """What a ledger tells of its changes, always outside of its lock; see ``memory.budget``."""

    def make_room(self, error: OutOfMemory) -> bool:
        """After an amount was refused: whether it is worth another try."""
        ...

    def added(self, tag: str) -> None:
        """After an amount was added."""
        ...

    def removed(self) -> None:
        """After an amount was released by its token."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    """One amount in the account; ``owners`` tokens stand for it, none once it is released."""

    nbytes: int
    tag: str
    owners: int = 1
    pending: bool = False  # not yet in the peak
    storage: int | None = None  # id of the storage object whose end releases it
    tier: str = ""


class Token:
    """An accounted amount; release it once, or use it as a context.

    Losing a token does not release it. An amount that belongs to a tensor is released when the
    tensor's storage is, whether its tokens were released or not.
    """

    __slots__ = ("_entry", "_ledger", "_released")

    def __init__(self, ledger: Ledger, entry: _Entry) -> None:
        self._ledger = ledger
        self._entry = entry
        self._released = False

    @property
    def nbytes(self) -> int:
        """The amount."""
        return self._entry.nbytes

    @property
    def tag(self) -> str:
        """The tag that it is counted under; for a storage counted before, the earlier one."""
        return self._entry.tag

    def release(self) -> None:
        """Take the amount out of the account; a second call does nothing."""
        self._ledger._release(self)  # noqa: SLF001  # a token is the ledger's own hand

    def confirm(self) -> None:
        """Let a reserved amount count in the peak; a second call does nothing."""
        self._ledger._confirm(self._entry)  # noqa: SLF001  # as above

    def bind(self, tensor: torch.Tensor) -> None:
        """Release the amount when the storage of ``tensor`` ends."""
        self._ledger._bind(self._entry, tensor)  # noqa: SLF001  # as above

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Ledger:
    """Counts bytes by tag, from any thread.

    It knows what it is told: tensors that ``dev.memory`` made, and what ``account`` was given.
    What torch allocates besides (activations, other libraries) is neither counted nor limited;
    ``memory.budget`` measures it.

    Args:
        limit_bytes: more than this raises ``OutOfMemory``; None is no limit. It may be changed
            at any time and holds for what is accounted afterwards.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit(limit_bytes, "limit_bytes")
        self.watcher: Watcher | None = None
        self._lock = threading.RLock()
        self._used = 0
        self._pending = 0
        self._peak = 0
        self._by_tag: dict[str, int] = {}
        self._by_place: dict[tuple[str, str], int] = {}
        self._tied = 0
        self._timeline: deque[tuple[float, str, int]] | None = None
        self._by_storage: dict[int, _Entry] = {}
        # A storage can end inside a garbage collection that interrupts a thread holding the lock,
        # so its end is only noted here; whoever takes the lock next settles it. So is a token that
        # an owner's finaliser releases there.
        self._ended: deque[_Entry] = deque()
        self._given_up: deque[Token] = deque()

    @property
    def limit_bytes(self) -> int | None:
        """More than this raises ``OutOfMemory``; None is no limit."""
        return self._limit

    @limit_bytes.setter
    def limit_bytes(self, nbytes: int | None) -> None:
        self._limit = limit(nbytes, "limit_bytes")

    def account(self, what: torch.Tensor | int, tag: str = "", *, tier: str = "") -> Token:
        """Add an amount.

        Args:
            what: bytes, or a tensor. A tensor counts with its whole storage, and views that share
                a storage count once: the later token stands for the same amount.
            tag: what the amount is for.
            tier: where it is, one of ``contracts.memory.Tier``; empty is the device's own memory.

        Returns:
            The token that releases it.

        Raises:
            OutOfMemory: the limit would be exceeded; nothing was added.
            MemoryFault: the amount is no number of 0 or more, or the tag no text.
        """
        tag, tier = label(tag), label(tier)
        if not isinstance(what, torch.Tensor):
            nbytes = whole(what, "an account of {} bytes")
            return self._admitted(lambda: Token(self, self._add(nbytes, tag, tier)), tag)
        try:
            holder: torch.UntypedStorage | torch.Tensor = what.untyped_storage()
        except NotImplementedError:
            holder = what  # a library's own layout has no storage; the tensor stands for it

        def add() -> Token:
            entry = self._by_storage.get(id(holder))
            if entry is not None:
                entry.owners += 1
                return Token(self, entry)
            size = holder.nbytes if isinstance(holder, torch.Tensor) else holder.nbytes()
            entry = self._add(size, tag, tier)
            self._tie(entry, holder)
            return Token(self, entry)

        return self._admitted(add, tag)

    def reserve(self, nbytes: int, tag: str = "", *, tier: str = "") -> Token:
        """Add an amount that is about to be allocated; it counts in the peak once confirmed.

        Raises:
            OutOfMemory: the limit would be exceeded; nothing was added.
            MemoryFault: the amount is no number of 0 or more, or the tag no text.
        """
        size, tag, tier = whole(nbytes, "an account of {} bytes"), label(tag), label(tier)
        return self._admitted(lambda: Token(self, self._add(size, tag, tier, pending=True)), tag)

    @property
    def used_bytes(self) -> int:
        """What is accounted now."""
        with self._lock:
            self._settle()
            return self._used

    @property
    def peak_bytes(self) -> int:
        """The most that was accounted since the start or the last ``reset_peak``.

        What was reserved and could not be allocated is not in it.
        """
        with self._lock:
            return self._peak

    @property
    def free_bytes(self) -> int | None:
        """What the limit still admits (0 when it was lowered below what is used), or None."""
        most = self._limit
        return None if most is None else max(0, most - self.used_bytes)

    def by_tag(self) -> dict[str, int]:
        """Accounted bytes of every tag that has any."""
        with self._lock:
            self._settle()
            return dict(self._by_tag)

    def by_place(self) -> dict[tuple[str, str], int]:
        """The same by (tag, tier); an empty tier is the device's own memory."""
        with self._lock:
            self._settle()
            return dict(self._by_place)

    @property
    def tied_bytes(self) -> int:
        """The part of what is accounted that belongs to tensors, which are torch's as a rule."""
        with self._lock:
            self._settle()
            return self._tied

    def record(self, on: bool) -> None:
        """Start keeping the last ``TIMELINE`` changes, or stop and forget them."""
        with self._lock:
            self._timeline = deque(maxlen=TIMELINE) if on else None

    def timeline(self) -> list[tuple[float, str, int]]:
        """(seconds since the epoch, tag, bytes added) of each change that was recorded."""
        with self._lock:
            self._settle()
            return list(self._timeline or ())

    def reset_peak(self) -> None:
        """Start a new peak from what is accounted now."""
        with self._lock:
            self._settle()
            self._peak = self._used - self._pending

    def _admitted(self, add: Callable[[], Token], tag: str) -> Token:
        """What ``add`` gives under the lock; the watcher may make room for it, outside of it."""
        left, asked = _TRIES, list[str]()
        while True:
            left -= 1
            try:
                with self._lock:
                    self._settle()
                    token = add()
            except OutOfMemory as error:
                if self.watcher is None or not left or not self.watcher.make_room(error):
                    if not hasattr(error, "__notes__"):  # who said before that they gave
                        for note in asked:
                            error.add_note(note)
                    raise
                asked = getattr(error, "__notes__", asked)
                continue
            if self.watcher is not None:
                try:
                    self.watcher.added(tag)
                except BaseException:  # an interruption: nobody would hold the token
                    token.release()
                    raise
            return token

    # --- under the lock ----------------------------------------------------------------------

    def _add(self, nbytes: int, tag: str, tier: str, *, pending: bool = False) -> _Entry:
        most = self._limit
        if most is not None and nbytes > max(0, most - self._used):
            raise OutOfMemory(
                f"{nbytes} bytes ({tag or 'no tag'}) exceed the limit, {self._used} are in use",
                requested_bytes=nbytes,
                free_bytes=max(0, most - self._used),
                limit_bytes=most,
                tag=tag,
                retryable=nbytes <= most,
                fix="release something, or raise dev.memory.budget.hard_bytes",
            )
        self._used += nbytes
        self._by_tag[tag] = self._by_tag.get(tag, 0) + nbytes
        self._by_place[tag, tier] = self._by_place.get((tag, tier), 0) + nbytes
        if self._timeline is not None:
            self._timeline.append((time.time(), tag, nbytes))
        self._pending += nbytes if pending else 0
        self._raise_peak()
        return _Entry(nbytes, tag, pending=pending, tier=tier)

    def _raise_peak(self) -> None:
        self._peak = max(self._peak, self._used - self._pending)

    def _remove(self, entry: _Entry) -> None:
        entry.owners = 0
        if self._timeline is not None:
            self._timeline.append((time.time(), entry.tag, -entry.nbytes))
        place = entry.tag, entry.tier
        here = self._by_place.pop(place, 0) - entry.nbytes
        if here:
            self._by_place[place] = here
        self._tied -= 0 if entry.storage is None else entry.nbytes
        if entry.pending:
            entry.pending = False
            self._pending -= entry.nbytes
        self._used -= entry.nbytes
        left = self._by_tag.pop(entry.tag, 0) - entry.nbytes  # amounts of 0 may be all that is left
        if left:
            self._by_tag[entry.tag] = left
        if entry.storage is not None:
            del self._by_storage[entry.storage]

    def _settle(self) -> None:
        while self._given_up:
            self._drop(self._given_up.popleft())
        while self._ended:
            entry = self._ended.popleft()
            if entry.owners:
                self._remove(entry)

    def _tie(self, entry: _Entry, storage: torch.UntypedStorage | torch.Tensor) -> None:
        # torch keeps the storage's one Python object as long as the storage itself, so its
        # identity and its end are those of the memory, whichever views exist.
        self._tied += entry.nbytes
        entry.storage = id(storage)
        self._by_storage[entry.storage] = entry
        weakref.finalize(storage, self._ended.append, entry).atexit = False

    # --- for tokens --------------------------------------------------------------------------

    def _release(self, token: Token) -> None:
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001  # by a Condition, too
            self._given_up.append(token)  # in a finaliser that interrupted this very thread
            return
        with self._lock:
            self._settle()
            self._drop(token)
        if self.watcher is not None:
            self.watcher.removed()

    def _drop(self, token: Token) -> None:
        if token._released:  # noqa: SLF001  # the ledger's own class
            return
        token._released = True  # noqa: SLF001
        entry = token._entry  # noqa: SLF001
        if entry.owners == 1:
            self._remove(entry)
        elif entry.owners:
            entry.owners -= 1

    def _confirm(self, entry: _Entry) -> None:
        with self._lock:
            self._settle()
            if entry.pending:
                entry.pending = False
                self._pending -= entry.nbytes
                self._raise_peak()

    def _bind(self, entry: _Entry, tensor: torch.Tensor) -> None:
        with self._lock:
            self._settle()
            if entry.storage is not None or not entry.owners:
                raise MemoryFault("this amount was released, or belongs to a tensor already")
            self._tie(entry, tensor.untyped_storage())
