"""What ranks do to see failures: wrong arguments, calls that differ, and ranks that do not come.

Each body says what breaks the contract by raising ``Wrong``; the seconds are those of the group's
own deadline and ``LATE`` more.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from trivet.collectives import DeviceGroup
from trivet.errors import (
    CommAborted,
    CommArgumentError,
    CommError,
    CommTimeout,
    CommUnsupported,
    GroupMismatch,
    PeerLost,
)
from trivet_conformance.collective.bodies import judge, maker
from trivet_conformance.collective.judged import Wrong
from trivet_conformance.collective.numbers import Call, given, start
from trivet_conformance.collective.rank import Here

LATE: Final = 2.0
"""Seconds after a deadline in which its error must have come."""

SHORT: Final = 0.5
"""Seconds that a group has whose deadline is waited for."""

Prefer = Mapping[str, Sequence[str]]


def arguments(here: Here, prefer: Prefer, operation: str) -> None:
    """What cannot be right is refused before anything is communicated; the group is as it was."""
    group = here.group(prefer=prefer)
    x = torch.ones(2 * group.size, device=here.device)
    wrong: dict[str, Callable[[], object]] = {
        "a reduction that does not exist": lambda: group.all_reduce(x, "median"),
        "bits of floats": lambda: group.all_reduce(x, "band"),
        "a root that does not exist": lambda: group.broadcast(x, group.size),
        "rows that cannot be shared out": lambda: group.reduce_scatter(
            torch.ones(2 * group.size + 1, device=here.device)
        ),
        "splits that do not add up": lambda: group.all_to_all(
            x, [1] * group.size, [1] * group.size
        ),
    }
    if group.size == 1:
        del wrong["rows that cannot be shared out"]
    for what, act in wrong.items():
        if group.rank == 0 or group.size == 1:  # one rank alone: nothing may wait for the others
            _raises(what, CommArgumentError, act)
        if not group.usable:
            msg = f"{what} ends the group: {group.failure}"
            raise Wrong(msg)
    call = _call(operation)
    judge(here, group, call, maker(group, call))
    group.close()


def mismatch(here: Here, prefer: Prefer, operation: str, *, check: bool) -> None:
    """Ranks whose calls differ in size all get an error in time, and the group has failed."""
    group = here.group(prefer=prefer, check=check)
    call = _call(operation, 8 if group.rank else 5)
    x = given(call, group.rank, group.size).to(here.device)
    kind = GroupMismatch if check else CommError
    error = _raises(
        "calls of two sizes", kind, lambda: start(group, call, x).result(), group.timeout + LATE
    )
    if not check:
        _ended(group, error)
        if group.rank == 0 and not isinstance(error, GroupMismatch):
            msg = f"it claims to compare, and raises {type(error).__name__}: {error}"
            raise Wrong(msg)
    group.close()


def late(here: Here, prefer: Prefer, operation: str) -> None:
    """A rank that does not come in time: the others say who, in time, and the group has failed."""
    group = here.group(prefer=prefer, timeout=SHORT)
    call = _of_last(group, operation)
    x = given(call, group.rank, group.size).to(here.device)
    if group.rank != group.size - 1:
        error = _raises(
            "a rank that does not come", (CommTimeout, PeerLost),
            lambda: start(group, call, x).result(), group.timeout + LATE,
        )  # fmt: skip
        _ended(group, error)
    else:
        time.sleep(SHORT + LATE / 2)
    group.close()
    group.close()


def slow(here: Here, prefer: Prefer, operation: str) -> None:
    """A rank that is slow, and in time, is no failure."""
    group = here.group(prefer=prefer)
    call = _call(operation)
    if group.rank == group.size - 1:
        time.sleep(SHORT)
    judge(here, group, call, maker(group, call))
    group.close()


def lost(here: Here, prefer: Prefer, operation: str, how: str, timeout: float) -> str | None:
    """A rank that ends, or is stopped: the others learn it in time, and have what they passed."""
    group = here.group(prefer=prefer, timeout=timeout)
    call = _of_last(group, operation)
    judge(here, group, call, maker(group, call))
    if group.rank == group.size - 1:
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)
    raw = given(call, group.rank, group.size)
    x = raw.to(here.device)
    error = _raises(
        f"a rank with {how}", (PeerLost, CommTimeout),
        lambda: start(group, call, x).result(), timeout + LATE,
    )  # fmt: skip
    _ended(group, error)
    if not torch.equal(x.cpu(), raw):
        msg = f"after {type(error).__name__} the input is another one"
        raise Wrong(msg)
    token = str(group.calls()["token"])
    group.close()
    return token


def aborted(here: Here, prefer: Prefer, operation: str) -> None:
    """``abort`` from another thread ends a wait at once, and another group works after it."""
    group = here.group(prefer=prefer)
    call = _call(operation)
    x = given(call, group.rank, group.size).to(here.device)
    if group.rank == 0:
        timer = threading.Timer(0.2, group.abort)
        timer.start()
        error = _raises(
            "abort", CommAborted, lambda: start(group, call, x).result(),
            min(0.2 + LATE, here.timeout),
        )  # fmt: skip
        timer.join()
        _ended(group, error)
    else:
        time.sleep(0.4)
    group.close()
    after = here.group(prefer=prefer)
    judge(here, after, call, maker(after, call))
    after.close()


def _call(operation: str, count: int = 5, root: int = 0) -> Call:
    return Call(operation, torch.float32, count, "sum" if "reduce" in operation else "", root)


def _of_last(group: DeviceGroup, operation: str) -> Call:
    """A call for which every rank needs the last one: it is the root."""
    return _call(operation, root=group.size - 1)


def _ended(group: DeviceGroup, error: CommError) -> None:
    """The group has failed with that error, and says so at once."""
    if group.usable or group.failure is None:
        msg = f"after {type(error).__name__} the group is said to be usable"
        raise Wrong(msg)
    _raises("a call of a group that failed", CommError,
            lambda: group.all_gather(torch.ones(1, device=group.device)), 1.0)  # fmt: skip


def _raises(what: str, kind: Any, act: Callable[[], object], limit: float = 1.0) -> CommError:
    """The error of a call, which must be of a kind, and come in time."""
    began = time.monotonic()
    try:
        act()
    except kind as error:
        took = time.monotonic() - began
        if took > limit:
            msg = f"{what}: {type(error).__name__} comes after {took:.1f} s, not within {limit:g} s"
            raise Wrong(msg) from error
        found: CommError = error
        return found
    except CommUnsupported:
        raise
    except Exception as error:
        msg = f"{what} raises {type(error).__name__}: {error}"
        raise Wrong(msg) from error
    msg = f"{what}: no error"
    raise Wrong(msg)
