"""Copies between tiers: by a vendor's migrator where its routes lead, by torch everywhere else.

``Mover`` is what callers use: ``prepare`` checks a batch once, ``post`` starts it, and what comes
back is polled, waited for and released. A batch that fails leaves its sources as they were, holds
nothing any more, and says so from ``poll`` and ``wait``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby

import torch

from trivet.contracts.memory import Copy, Cost, Migrator, Tier, Transfer
from trivet.errors import MemoryFault, PluginBroken
from trivet.memory.unraisable import brief, noted
from trivet.plugins.describe import said, shown

__all__ = ["Mover", "Prepared", "Rates", "TorchMigrator", "finish"]


class Rates:
    """Bytes a second by route, as the copies of this process showed; recent ones count more."""

    _NEW = 0.25  # the share of the newest transfer in the average

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[Tier, Tier], float] = {}

    def saw(self, route: tuple[Tier, Tier], nbytes: int, seconds: float) -> None:
        """A transfer of so many bytes took so long."""
        if nbytes <= 0 or seconds <= 0:
            return
        with self._lock:
            old = self._seen.get(route, nbytes / seconds)
            self._seen[route] = (1 - self._NEW) * old + self._NEW * nbytes / seconds

    def cost(self, route: tuple[Tier, Tier], nbytes: int) -> Cost:
        """What so many bytes are expected to take; unknown before the first of that route."""
        rate = self._seen.get(route)
        return Cost() if rate is None else Cost(nbytes / rate, rate)


class TorchMigrator:
    """Copies with ``Tensor.copy_``, on the current stream of the accelerator that takes part.

    Every tier that is a tensor can be copied to every other one.
    """

    def __init__(self) -> None:
        self.rates = Rates()

    def routes(self) -> frozenset[tuple[Tier, Tier]]:
        """Every tier to every tier."""
        return frozenset((a, b) for a in Tier for b in Tier)

    def estimate(self, source: Tier, target: Tier, nbytes: int) -> Cost:
        """From the rates that were measured so far."""
        return self.rates.cost((source, target), nbytes)

    def post(self, copies: Sequence[Copy]) -> Transfer:
        """Starts a batch; for its errors see ``trivet.contracts.memory.Migrator``."""
        return self.timed(copies, None)

    def timed(self, copies: Sequence[Copy], route: tuple[Tier, Tier] | None) -> TorchTransfer:
        """``post``, whose time is entered under a route."""
        for copy in copies:
            refuse_outside(copy)
        return TorchTransfer(copies, self.rates, route)


class TorchTransfer:
    """Copies that torch was given; done at once on the host, at an event on an accelerator."""

    def __init__(
        self, copies: Sequence[Copy], rates: Rates, route: tuple[Tier, Tier] | None
    ) -> None:
        self._rates, self._route = rates, route
        self._nbytes = sum(copy.nbytes for copy in copies)
        self._held: Sequence[Copy] = copies
        self._failure: MemoryFault | None = None
        self._events: list[torch.Event] = []
        self._done = False
        self._start = time.perf_counter()
        try:
            for copy in copies:
                run(copy)
            self._events = [_event(device) for device in _accelerators(copies)]
        except (RuntimeError, TypeError, ValueError) as error:  # torch's, in the middle of it
            self._fail(error)
        if not self._events:
            self._finish()

    def poll(self) -> bool:
        """Whether it is done; for its errors see ``Transfer``."""
        if not self._done:
            try:
                if not all(event.query() for event in self._events):
                    return False
            except RuntimeError as error:
                self._fail(error)
            self._finish()
        self._raise()
        return True

    def wait(self) -> None:
        """Blocks until it is done; for its errors see ``Transfer``."""
        if not self._done:
            self._synchronize()
            self._finish()
        self._raise()

    def release(self) -> None:
        """Gives up its tensors; what was started cannot be recalled, so it is waited for."""
        if not self._done:
            self._synchronize()
            self._done = True
        self._held, self._events = (), []
        self._failure = None  # which holds, by its traceback, who waited for it

    def _synchronize(self) -> None:
        try:
            for event in self._events:
                event.synchronize()
        except RuntimeError as error:
            self._fail(error)

    def _finish(self) -> None:
        self._done = True
        self._held, self._events = (), []
        if self._failure is None and self._route is not None:
            self._rates.saw(self._route, self._nbytes, time.perf_counter() - self._start)

    def _fail(self, error: Exception) -> None:
        self._failure = failed_batch(error, "torch")

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


class Mover:
    """Copies by whoever can: the vendor's migrator on its routes, core's on all others.

    Args:
        provided: a vendor's object, which is asked when it is a ``Migrator``.
    """

    def __init__(self, provided: object = None) -> None:
        self._own = TorchMigrator()
        self._vendor = provided if isinstance(provided, Migrator) else None

    @cached_property
    def _routes(self) -> frozenset[tuple[Tier, Tier]]:
        if self._vendor is None:
            return frozenset()
        name = type(self._vendor).__qualname__
        try:
            return frozenset(self._vendor.routes())
        except Exception as error:
            msg = f"the vendor's {name} does not say what it copies: {said(error)}"
            raise PluginBroken(msg, fix="routes() gives pairs of tiers") from error

    def migrator(self, source: Tier, target: Tier) -> Migrator:
        """Who copies from one tier to another."""
        own = self._vendor is None or (source, target) not in self._routes
        return self._own if own or self._vendor is None else self._vendor

    def explain(self, source: Tier, target: Tier) -> str:
        """Who copies from one tier to another, and why."""
        if self._vendor is None:
            return f"{source} to {target}: torch, since the vendor brings no migrator"
        name = type(self._vendor).__qualname__
        if (source, target) in self._routes:
            return f"{source} to {target}: the vendor's {name}"
        return f"{source} to {target}: torch, since it is no route of the vendor's {name}"

    def estimate(self, source: Tier, target: Tier, nbytes: int) -> Cost:
        """What a batch is expected to take."""
        asked = self.migrator(source, target)
        try:
            found: object = asked.estimate(source, target, nbytes)
        except Exception as error:
            msg = f"the vendor's {type(asked).__qualname__} estimates no cost: {said(error)}"
            raise PluginBroken(msg, fix="Cost() is what is not known") from error
        if not isinstance(found, Cost):
            msg = f"the vendor's {type(asked).__qualname__} estimates {shown(found)}"
            raise PluginBroken(msg, fix="a Cost; Cost() is what is not known")
        return found

    def prepare(self, copies: Iterable[Copy], source: Tier, target: Tier) -> Prepared:
        """Checks a batch, and joins runs that follow one another; it can be posted many times.

        Raises:
            MemoryFault: a run lies outside its buffer.
        """
        batch = joined(copies)
        for copy in batch:
            refuse_outside(copy)
        return Prepared(self.migrator(source, target), batch, (source, target))

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, route: tuple[Tier, Tier]
    ) -> Transfer:
        """Starts the copy of all bytes of one buffer into another one of the same size."""
        return self.prepare([Copy(source, 0, target, 0, source.numel())], *route).post()


class Prepared:
    """A checked batch of one route."""

    def __init__(
        self, migrator: Migrator, copies: Sequence[Copy], route: tuple[Tier, Tier]
    ) -> None:
        self.migrator, self.copies, self.route = migrator, copies, route

    def post(self) -> Transfer:
        """Starts it after what the current stream was given before."""
        if isinstance(self.migrator, TorchMigrator):
            return self.migrator.timed(self.copies, self.route)
        return Guarded(self.migrator, self.copies)


class Guarded:
    """A vendor's transfer, which holds nothing after it failed and fails in one way."""

    def __init__(self, migrator: Migrator, copies: Sequence[Copy]) -> None:
        self._name = type(migrator).__qualname__
        self._failure: MemoryFault | None = None
        self._inner: Transfer | None = None
        self._done = False
        try:
            posted: object = migrator.post(copies)
        except Exception as error:  # noqa: BLE001  # a vendor's code; raised by poll and wait
            self._fail(error)
            return
        if isinstance(posted, Transfer):
            self._inner = posted
        else:  # nobody could tell when it is done, or whether it ever was
            self._fail(PluginBroken(f"post returned {shown(posted)}", fix="a Transfer"))

    def poll(self) -> bool:
        """Whether it is done; for its errors see ``Transfer``."""
        if self._inner is not None and not self._done:
            try:
                self._done = bool(self._inner.poll())
            except Exception as error:  # noqa: BLE001  # as above
                self._fail(error)
        self._raise()
        return self._done

    def wait(self) -> None:
        """Blocks until it is done; for its errors see ``Transfer``."""
        if self._inner is not None and not self._done:
            try:
                self._inner.wait()
                self._done = True
            except Exception as error:  # noqa: BLE001  # as above
                self._fail(error)
        self._raise()

    def release(self) -> None:
        """Gives up everything that it holds.

        Raises:
            MemoryFault: the vendor's does not; what it holds is its own from now on.
        """
        self._failure = None  # which holds, by its traceback, who waited for it
        self._done = True
        inner, self._inner = self._inner, None
        if inner is not None:
            try:
                inner.release()
            except Exception as error:
                raise failed_batch(error, f"the vendor's {self._name}") from error

    def _fail(self, error: Exception) -> None:
        failure = failed_batch(error, f"the vendor's {self._name}")
        with noted(failure, "it did not release what it holds"):
            self.release()
        self._failure = failure

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


def finish(transfer: Transfer) -> None:
    """Waits for a transfer and has it release all; an error of the wait is the one that counts.

    Raises:
        MemoryFault: see ``Transfer``.
    """
    try:
        transfer.wait()
    except BaseException as error:
        with noted(error, "it did not release what it holds"):
            transfer.release()
        raise
    transfer.release()


def run(copy: Copy) -> None:
    """Gives torch one run; it may not be done when this returns."""
    source = copy.source[copy.source_offset : copy.source_offset + copy.nbytes]
    target = copy.target[copy.target_offset : copy.target_offset + copy.nbytes]
    target.copy_(source, non_blocking=True)


def joined(copies: Iterable[Copy]) -> list[Copy]:
    """The same bytes in fewer runs: those that follow one another on both sides become one."""
    found: list[Copy] = []
    for _, group in groupby(copies, lambda c: (id(c.source), id(c.target))):
        first = len(found)
        for copy in group:
            last = found[-1] if len(found) > first else None
            if (
                last is not None
                and last.source_offset + last.nbytes == copy.source_offset
                and last.target_offset + last.nbytes == copy.target_offset
            ):
                nbytes = last.nbytes + copy.nbytes
                found[-1] = Copy(
                    last.source, last.source_offset, last.target, last.target_offset, nbytes
                )
            else:
                found.append(copy)
    return found


def refuse_outside(copy: Copy) -> None:
    """Refuses a run that does not lie in its buffers.

    Raises:
        MemoryFault: it does not, or one of them is no flat tensor of bytes.
    """
    for role, buffer, offset in (
        ("source", copy.source, copy.source_offset),
        ("target", copy.target, copy.target_offset),
    ):
        if not _inside(buffer, offset, copy.nbytes):
            what = shown(type(buffer))
            if isinstance(buffer, torch.Tensor):
                what = f"{buffer.dtype} {list(buffer.shape)}"
            msg = f"{shown(copy.nbytes)} bytes at {shown(offset)} do not lie in the {role}, {what}"
            raise MemoryFault(msg, fix="contiguous uint8 tensors of one dimension, and runs inside")


def _inside(buffer: object, offset: object, nbytes: object) -> bool:
    return (
        isinstance(buffer, torch.Tensor)
        and buffer.dtype == torch.uint8
        and buffer.dim() == 1
        and buffer.is_contiguous()
        and isinstance(offset, int)
        and isinstance(nbytes, int)
        and offset >= 0
        and nbytes >= 0
        and offset + nbytes <= len(buffer)
    )


def failed_batch(error: Exception, who: str) -> MemoryFault:
    """The one error of a batch that could not be copied."""
    if isinstance(error, MemoryFault):
        return error
    found = MemoryFault(
        f"{who} could not copy a batch: {brief(error)}",
        fix="its sources are as they were, its targets are not; try again, or compute them anew",
    )
    found.__cause__ = error
    return found


def _accelerators(copies: Iterable[Copy]) -> list[torch.device]:
    found = {t.device: None for copy in copies for t in (copy.source, copy.target)}
    return [device for device in found if device.type != "cpu"]


def _event(device: torch.device) -> torch.Event:
    event = torch.Event(device)
    event.record()  # on the current stream of that device
    return event
