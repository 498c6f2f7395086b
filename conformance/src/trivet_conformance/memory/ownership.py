"""Behind core's front: each buffer ends once, whoever ends it, on any thread, or never."""

from __future__ import annotations

import gc
import random
import threading
from typing import Final

import torch

from trivet.errors import InvalidBuffer
from trivet.memory.buffers import Buffer, Buffers
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.child import Child, NoAnswer
from trivet_conformance.memory.held import TAG, pattern
from trivet_conformance.memory.judged import Wrong, asked, not_run, refused
from trivet_conformance.result import Finding
from trivet_conformance.subject.leg import Leg

THREADS: Final = 8


def _filled(buffers: Buffers, nbytes: int, number: int) -> Buffer:
    try:
        buffer = buffers.allocate(nbytes, tag=TAG)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        msg = f"core's front cannot allocate {nbytes} bytes: {type(error).__name__}: {error}"
        raise Wrong(msg) from error
    buffer.raw.copy_(pattern(nbytes, number))
    return buffer


def _check(buffer: Buffer, number: int) -> None:
    if not torch.equal(buffer.raw.cpu(), pattern(buffer.nbytes, number)):
        msg = f"a live buffer of {buffer.nbytes} bytes has not what was written into it"
        raise Wrong(msg)


def _free(buffer: Buffer) -> None:
    try:
        buffer.free()
    except Exception as error:
        msg = f"freeing {buffer!r} raises {type(error).__name__}: {error}"
        raise Wrong(msg) from error


def front(leg: Leg, bench: Bench) -> None:
    """What was freed, or is another's, is refused, and every other buffer is as it was."""
    del bench
    own, other = asked(Buffers, leg.allocator), asked(Buffers, leg.allocator)
    live = [_filled(own, nbytes, i) for i, nbytes in enumerate((100, 5000, 70_000))]
    freed, foreign = _filled(own, 5000, 8), _filled(other, 5000, 9)
    _free(freed)
    after = _filled(own, 5000, 10)  # perhaps the very memory that was freed
    refused(InvalidBuffer, "freeing a buffer twice", own.free, freed)
    refused(InvalidBuffer, "freeing another's buffer", own.free, foreign)
    refused(InvalidBuffer, "using a freed buffer", freed.tensor, (1,), torch.uint8)
    more = _filled(own, 5000, 11)
    for number, buffer in [*enumerate(live), (9, foreign), (10, after), (11, more)]:
        _check(buffer, number)
        _free(buffer)


def finaliser(leg: Leg, bench: Bench) -> None:
    """What the collector ends comes back, and harms nobody; torch frees tensors there, too."""
    del bench
    buffers = asked(Buffers, leg.allocator)
    gc.collect()  # what earlier checks left in rings is not this one's
    before = leg.stats().allocated_bytes
    keep = _filled(buffers, 4096, 1)
    for number in range(5):
        ring: list[object] = [_filled(buffers, 4096, number)]
        ring.append(ring)
        del ring
    gc.collect()
    buffers.settle()
    again = [_filled(buffers, 4096, 20 + i) for i in range(5)]
    gc.collect()
    if buffers.leaked != 5:
        msg = f"5 buffers ended in the collector, {buffers.leaked} came back"
        raise Wrong(msg)
    for number, buffer in [(1, keep), *((20 + i, b) for i, b in enumerate(again))]:
        _check(buffer, number)
        _free(buffer)
    del keep, again, buffer
    if (after := leg.stats().allocated_bytes) != before:
        msg = f"{before} bytes were counted before, {after} are after the collector ended buffers"
        raise Wrong(msg)


def threads(leg: Leg, bench: Bench) -> None:
    """Eight threads hammer core's front; buffers also end on another thread than their own."""
    buffers, problems = asked(Buffers, leg.allocator), list[str]()
    shared: list[tuple[Buffer, int]] = []
    lock = threading.Lock()

    def hammer(which: int) -> None:
        choice, own = random.Random(bench.seed + which), list[tuple[Buffer, int]]()  # noqa: S311
        try:
            for turn in range(20 if bench.quick else 100):
                number = which * 1000 + turn
                own.append((_filled(buffers, choice.choice([0, 64, 900, 9000]), number), number))
                if len(own) > 4:
                    with lock:
                        shared.append(own.pop(choice.randrange(len(own))))
                        buffer, number = shared.pop(choice.randrange(len(shared)))
                    _check(buffer, number)
                    _free(buffer)
        except (Wrong, torch.OutOfMemoryError) as problem:
            problems.append(str(problem))
        with lock:
            shared.extend(own)

    running = [threading.Thread(target=hammer, args=(i,)) for i in range(THREADS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if problems:
        raise Wrong(problems[0])
    for buffer, number in shared:
        _check(buffer, number)
        _free(buffer)


def leaves(leg: Leg, bench: Bench) -> Finding | None:
    """A process that ends without freeing ends in order."""
    del bench
    if not leg.recipe:
        return not_run("another process cannot make this memory")
    try:
        with Child(leg.recipe) as child:
            child.ask("hold", sizes=[0, 100, 70_000])
            status = child.end()
    except NoAnswer as problem:
        msg = f"a process of its own that allocates: {problem}"
        raise Wrong(msg) from problem
    if status:
        msg = f"a process that ended without freeing its buffers has status {status}"
        raise Wrong(msg)
    return None
