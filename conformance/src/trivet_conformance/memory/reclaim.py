"""Reclaim: memory of one buffer is taken away and comes back, and no other buffer notices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from trivet.contracts.memory import Allocator, Reclaimer, Tier, Trimmer
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.exhaustion import BUDGET, CHUNK
from trivet_conformance.memory.held import Held, resident_bytes
from trivet_conformance.memory.judged import Check, Wrong, asked, case, lacks, not_run
from trivet_conformance.result import Finding
from trivet_conformance.subject.leg import Leg

NAME: Final = "memory.reclaim"
LEVEL: Final = "L1"

SURVIVES: Final = frozenset({"address", "graphs", "communicators"})
VISIBLE: Final = 8 << 20
"""Bytes of a buffer whose absence is seen in the memory of the process."""

CYCLES: Final = 3


def provider(leg: Leg) -> str:
    """Whose it is; core composes neither."""
    return leg.plugin


def cases(leg: Leg, bench: Bench) -> Iterator[Case]:
    """The checks of a reclaimer, and those of a trimmer."""
    checks: dict[str, Check] = {
        "preserves": _preserves,
        "suspend": _suspend,
        "freed": _freed,
        "given_back": _given_back,
        "no_room": _no_room,
    }
    reason = ""
    if not leg.brings(Reclaimer):
        reason = f"{leg.plugin} brings no Reclaimer: core copies out, frees and allocates again"
    elif not leg.brings(Allocator):
        reason = f"{leg.plugin} brings a Reclaimer and no Allocator: it has no buffers of its own"
    for name, check in checks.items():
        yield case(name, lacks(reason) if reason else check, leg, bench)
    trims = partial(_trims) if leg.brings(Trimmer) else lacks(f"{leg.plugin} brings no Trimmer")
    yield case("trim", trims, leg, bench)


def _preserves(leg: Leg, bench: Bench) -> str:
    del bench
    found = leg.provided.preserves
    if not isinstance(found, frozenset) or not found <= SURVIVES:
        msg = f"preserves is {found!r}, no frozenset of {', '.join(sorted(SURVIVES))}"
        raise Wrong(msg)
    return f"survives a suspension: {', '.join(sorted(found)) or 'nothing'}"


def suspend(leg: Leg, held: Held, key: int) -> None:
    """Suspends a buffer; the others are looked at by the caller."""
    held.lost(key)
    asked(leg.provided.suspend, held.tensor(key))


def _suspend(leg: Leg, bench: Bench) -> None:
    """The others are as they were, new ones come, and the address is the old one."""
    with Held(leg, bench.seed) as held:
        for nbytes in (5000, 70_000, 5000, 300_000, 0, 5000, 4096):
            held.take(nbytes)
        for cycle in range(CYCLES):
            gone = list(held)[1:6:2] if cycle % 2 else list(held)[2:5]
            starts = [held.tensor(k).data_ptr() for k in gone]
            for key in gone:
                suspend(leg, held, key)
                held.verify()
            for nbytes in (5000, 70_000):  # what comes meanwhile must not lie there
                held.take(nbytes)
            for key, start in zip(gone, starts, strict=True):
                asked(leg.provided.resume, held.tensor(key))
                held.write(key)
                if held.tensor(key).data_ptr() != start:
                    msg = "a buffer that was suspended comes back at another address"
                    raise Wrong(msg)
            held.verify()


def _freed(leg: Leg, bench: Bench) -> None:
    """A suspended buffer may be given back; its memory counts as free afterwards."""
    before = leg.stats().allocated_bytes
    with Held(leg, bench.seed) as held:
        for _ in range(CYCLES):
            keys = [held.take(nbytes) for nbytes in (5000, 70_000, 5000)]
            suspend(leg, held, keys[1])
            held.give(keys[1])
            held.take(70_000)
            held.verify()
    if (after := leg.stats().allocated_bytes) != before:
        msg = f"{before} bytes were counted before, {after} after a suspended buffer was freed"
        raise Wrong(msg)


def _given_back(leg: Leg, bench: Bench) -> Finding | None:
    """Suspended memory is there for others: seen in the process, or in the device's numbers."""
    host = leg.allocator.traits().tier in (Tier.HOST, Tier.SHARED)
    with Held(leg, bench.seed) as held:
        key = held.take(VISIBLE)
        before, free = resident_bytes() if host else None, leg.info().free_bytes
        suspend(leg, held, key)
        after, now = resident_bytes() if host else None, leg.info().free_bytes
        asked(leg.provided.resume, held.tensor(key))
        held.write(key)
    if before is not None and after is not None:
        seen, where = before - after, "the memory of the process"
    elif not host and free is not None and now is not None:
        seen, where = now - free, "the free memory of the device"
    else:
        return not_run("nobody says how much memory is in use")
    if seen < VISIBLE // 2:
        msg = f"{VISIBLE} bytes are suspended, and {where} shows {seen} of them"
        raise Wrong(msg)
    return None


def _no_room(leg: Leg, bench: Bench) -> Finding | None:
    """What cannot be resumed stays suspended; it can be freed, or resumed when there is room."""
    with Held(leg, bench.seed) as held:
        sleeping = [held.take(CHUNK) for _ in range(2)]
        for key in sleeping:
            suspend(leg, held, key)
        full = False
        with contextlib.suppress(torch.OutOfMemoryError):
            while len(held) < BUDGET:
                held.take(CHUNK)
        full = len(held) < BUDGET
        if not full:
            return not_run(f"no exhaustion within {BUDGET} MiB")
        failed = [key for key in sleeping if not _resumed(leg, held, key)]
        held.verify()
        for key in [k for k in held if k not in sleeping][: len(failed)]:
            held.give(key)
        if failed and not _resumed(leg, held, failed[0]):
            msg = "there is room again, and a buffer whose resume failed cannot be resumed"
            raise Wrong(msg)
        held.verify()
        if not failed:
            return not_run("a full device has room for what is suspended")
    return None


def _resumed(leg: Leg, held: Held, key: int) -> bool:
    try:
        asked(leg.provided.resume, held.tensor(key))
    except torch.OutOfMemoryError:
        return False
    held.write(key)
    return True


def _trims(leg: Leg, bench: Bench) -> str:
    """Only what no buffer holds is given back, and it is said how much."""
    with Held(leg, bench.seed) as held:
        keys = [held.take(nbytes) for nbytes in (5000, 70_000, 300_000, 0, 300_000)]
        for key in keys[1::2]:
            held.give(key)
        given = [asked(leg.provided.trim, nbytes) for nbytes in (1, 0, 0)]
        if not all(type(n) is int and n >= 0 for n in given):
            msg = f"trim returns {given}, no numbers of bytes"
            raise Wrong(msg)
        held.verify()
        for nbytes in (70_000, 300_000):
            held.take(nbytes)
        held.verify()
    return f"gave back {given} bytes"
