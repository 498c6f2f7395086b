"""Every allocator of core over a strict one, for suites that hold all of them to the same."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.errors import InvalidBuffer, MemoryFault, OutOfMemory
from trivet.memory.adaptors import Aligned, Faulty, Instrumented, Logging, Simulated, ThreadSafe
from trivet.memory.ledger import Ledger
from trivet.memory.pools import Arena, BestFit, Binned, Fixed
from trivet.memory.torch_allocator import TorchAllocator

CPU = torch.device("cpu")
ROOM = 1 << 16


class Strict:
    """Host memory of a limited size that refuses every misuse.

    Args:
        room: bytes.
        collects: run the garbage collector inside every call, as it may.
    """

    preserves = frozenset({"address"})

    def __init__(self, room=ROOM, *, collects=False):
        self.room, self.used, self.calls = room, 0, 0
        self._live, self._suspended = {}, set()
        self._inside, self._collects = threading.Lock(), collects

    def traits(self):
        return Traits(CPU, Tier.HOST, 64, host_visible=True, zeroed=True, exportable={"shm"})

    def allocate(self, nbytes, *, tag):
        with self._alone():
            if nbytes > self.room - self.used:
                free = self.room - self.used
                raise OutOfMemory("full", requested_bytes=nbytes, free_bytes=free, tag=tag)
            made = torch.zeros(nbytes, dtype=torch.uint8)
            self.used += nbytes
            self._live[id(made)] = made
            return made

    def deallocate(self, buffer):
        with self._alone():
            if self._live.pop(id(buffer), None) is None:
                raise InvalidBuffer("not a live buffer of the strict allocator")
            self._suspended.discard(id(buffer))
            self.used -= buffer.numel()

    def suspend(self, buffer):
        if id(buffer) not in self._live:
            raise MemoryFault("suspends what is not live")
        self._suspended.add(id(buffer))

    def resume(self, buffer):
        self._suspended.remove(id(buffer))

    def export(self, buffer, kind):
        return f"{id(self._live[id(buffer)])} {kind}".encode()

    def open(self, exported, kind):
        return self._live[int(exported.split()[0])]

    def close(self, buffer):
        pass

    def _alone(self):
        owner = self

        class Alone:
            def __enter__(self):
                if not owner._inside.acquire(blocking=False):
                    raise AssertionError("two calls at a time")
                owner.calls += 1
                if owner._collects:
                    gc.collect(0)  # what was just dropped is young

            def __exit__(self, *exc):
                owner._inside.release()

        return Alone()


@dataclass(frozen=True)
class Stack:
    """How an allocator is made over an upstream, and what it is not held to.

    Args:
        make: from the upstream.
        largest: no single buffer above this.
        checks: it refuses foreign buffers.
        reads: its tensors have contents.
        over: it asks its upstream.
    """

    make: Callable[[object], object]
    largest: int = ROOM // 4
    checks: bool = True
    reads: bool = True
    over: bool = True


def _deep(upstream):
    logged = Logging(upstream, io.StringIO(), form="jsonl", clock=None)
    return Instrumented(Aligned(BestFit(logged, least_bytes=2048, most_bytes=8192), 256))


STACKS = {
    "torch": Stack(lambda _: TorchAllocator(CPU), checks=False, over=False),
    "simulated": Stack(lambda _: Simulated(ROOM), reads=False, over=False),
    "simulated-best": Stack(
        lambda _: Simulated(ROOM, fit="best", alignment=512), reads=False, over=False
    ),
    "thread-safe": Stack(ThreadSafe),
    "instrumented": Stack(Instrumented),
    "instrumented-all": Stack(
        lambda up: Instrumented(
            up, limit_bytes=ROOM, ledger=Ledger(), stacks=True, on_event=lambda _: None
        )
    ),
    "aligned": Stack(lambda up: Aligned(up, 1024)),
    "logging": Stack(lambda up: Logging(up, io.StringIO())),
    "faulty": Stack(Faulty),
    "binned": Stack(Binned),
    "binned-classes": Stack(lambda up: Binned(up, classes=(64, 1024, 4096))),
    "arena": Stack(lambda up: Arena(up, ROOM // 2)),
    "fixed": Stack(lambda up: Fixed(up, 2000, blocks=4), largest=2000),
    "best-fit": Stack(lambda up: BestFit(up, least_bytes=1024, most_bytes=8192)),
    "deep": Stack(_deep),
}


def safe(allocator):
    """The allocator, or a thread-safe one over it."""
    return allocator if getattr(allocator, "thread_safe", False) else ThreadSafe(allocator)


def trimmed(allocator):
    """Asks an allocator and all below it to give back what they keep."""
    while allocator is not None:
        if hasattr(allocator, "trim"):
            allocator.trim(0)
        allocator = getattr(allocator, "upstream", None)
