"""Allocate: buffers are what was asked for, apart, kept, counted, and given out again.

Core's own allocator over torch is judged where a plugin brings none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import torch

from trivet.contracts.memory import ABILITIES, Allocator, StatsSource, Tier
from trivet.memory.upstream import ability_problem, allocator_problem
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import exhaustion, machine, ownership
from trivet_conformance.memory.held import Held, pattern, resident_bytes, seen_by_host
from trivet_conformance.memory.judged import Check, Wrong, case, lacks, not_run
from trivet_conformance.result import Finding
from trivet_conformance.subject.leg import Leg

NAME: Final = "memory.allocate"
LEVEL: Final = "L1"

SIZES: Final = (0, 1, 2, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 1 << 16, (1 << 20) + 3)
ROUNDS: Final = 64
LARGE: Final = 1 << 20
"""Bytes of a buffer of which ``ROUNDS`` are seen in the memory of the process if they leak."""


def provider(leg: Leg) -> str:
    """Whose allocator it is."""
    return leg.owner(Allocator)


def cases(leg: Leg, bench: Bench) -> Iterator[Case]:
    """Every check of an allocator."""
    checks: dict[str, Check] = {
        "abilities": _abilities,
        "traits": _traits,
        "sizes": _sizes,
        "order": _order,
        "visible": _visible,
        "zeroed": _zeroed,
        "counted": _counted,
        "kept": _kept,
        "impossible": exhaustion.impossible,
        "exhausted": exhaustion.exhausted,
        "front": ownership.front,
        "finaliser": ownership.finaliser,
        "threads": ownership.threads,
        "model": machine.model,
        "exit": ownership.leaves,
    }
    if allocator_problem(leg.allocator):
        checks = {"abilities": _abilities, "traits": _traits}  # nothing can be asked of it
    elif not leg.allocator.traits().zeroed:
        checks["zeroed"] = lacks("the traits promise no zeros")
    for name, check in checks.items():
        yield case(name, check, leg, bench)


def _abilities(leg: Leg, bench: Bench) -> Finding | str:
    """What the hook returned has an ability of the contract; what is composed is said."""
    del bench
    names = {a.__name__: leg.brings(a) for a in ABILITIES}
    if leg.provided is not None and (problem := ability_problem(leg.provided)):
        msg = f"trivet_memory returns what cannot be used: {problem}"
        raise Wrong(msg)
    brought = ", ".join(n for n, has in names.items() if has) or "nothing"
    absent = ", ".join(n for n, has in names.items() if not has) or "nothing"
    return f"{leg.plugin} brings {brought}; composed by core or absent: {absent}"


def _traits(leg: Leg, bench: Bench) -> str:
    del bench
    if problem := allocator_problem(leg.allocator):
        raise Wrong(problem)
    traits: Any = leg.allocator.traits()
    if traits.tier not in set(Tier):
        msg = f"the tier is {traits.tier!r}, none of {', '.join(Tier)}"
        raise Wrong(msg)
    if traits.alignment < 64 or traits.alignment & (traits.alignment - 1):
        msg = f"the alignment is {traits.alignment}, no power of two of at least 64"
        raise Wrong(msg)
    with Held(leg) as held:
        held.take(100)
        if leg.allocator.traits() != traits:
            msg = f"the traits change: {traits.to_json()}, then {leg.allocator.traits().to_json()}"
            raise Wrong(msg)
    return json.dumps(traits.to_json(), sort_keys=True)


def _sizes(leg: Leg, bench: Bench) -> None:
    """All sizes at once, and twice each: every buffer is apart from the others and writable."""
    with Held(leg, bench.seed) as held:
        for nbytes in (*SIZES, *reversed(SIZES)):
            held.take(nbytes)
        held.verify()


def _order(leg: Leg, bench: Bench) -> None:
    """Buffers come and go in a random order; none loses its contents to another one."""
    with Held(leg, bench.seed) as held:
        for _ in range(150 if bench.quick else 600):
            if len(held) > 24 or (len(held) and held.random.random() < 0.45):
                held.give(held.random.choice(list(held)))
            else:
                held.take(held.random.choice([0, 1, 100, 256, 1000, 4096, 20_000, 70_000]))
        held.verify()


def _visible(leg: Leg, bench: Bench) -> Finding | None:
    """What the traits call visible to the host is read at the address of the tensor."""
    if not leg.allocator.traits().host_visible:
        return not_run("the traits say that the host does not see it")
    with Held(leg, bench.seed) as held:
        key = held.take(5000)
        raw = held.tensor(key)
        if raw.device.type != "cpu":
            torch.accelerator.synchronize(raw.device)
        if seen_by_host(raw) != bytes(raw.cpu().numpy().tobytes()):
            msg = "the processor reads other bytes at the address than torch does"
            raise Wrong(msg)
        start = raw.data_ptr()
        held.write(key)
        if raw.data_ptr() != start:
            msg = "the address of a buffer changes while it is held"
            raise Wrong(msg)
    return None


def _zeroed(leg: Leg, bench: Bench) -> None:
    """Memory that was dirty and given back comes again as zeros; ``Held`` looks."""
    with Held(leg, bench.seed) as held:
        for nbytes in (1, 64, 4096, 100_000, 100_000, 4096, 64, 1):
            for _ in range(3):
                held.take(nbytes)
            held.give_all()


def _counted(leg: Leg, bench: Bench) -> Finding | None:
    """What is counted: all that is held, never less than it, and nothing when it is given back."""
    if leg.stats().allocated_bytes is None:
        who = leg.plugin if leg.brings(StatsSource) else "nobody"
        return not_run(f"{who} counts what is allocated")
    before, seen = _counts(leg), 0
    with Held(leg, bench.seed) as held:
        total = 0
        for nbytes in (0, 1, 4096, 100_000, 0, 300_000, 7):
            held.take(nbytes)
            total += nbytes
            now = _counts(leg)
            seen = max(seen, now[0])
            if now[0] - before[0] < total:
                msg = f"{total} bytes are held, {now[0] - before[0]} more than before are counted"
                raise Wrong(msg)
        held.give_all()
        after = _counts(leg)
        if after[0] != before[0]:
            more = after[0] - before[0]
            msg = f"all is given back, and {more} bytes more than before are counted"
            raise Wrong(msg)
        if leg.stats().max_allocated_bytes is not None:
            _judge_peak(leg, max(seen, before[1]), after[1])
    return None


def _judge_peak(leg: Leg, seen: int, peak: int) -> None:
    """The peak is of what was counted, and rises only with it."""
    if peak < seen:
        msg = f"the peak is {peak} bytes, and {seen} were counted before"
        raise Wrong(msg)
    with Held(leg) as held:
        for _ in range(3):
            held.take(1000)
            held.give_all()
    if (again := _counts(leg)[1]) > peak:
        msg = f"the peak rises from {peak} to {again} bytes when less than it is held"
        raise Wrong(msg)


def _counts(leg: Leg) -> tuple[int, int]:
    """Bytes that are counted, and their peak; numbers that cannot be are wrong."""
    stats = leg.stats()
    used = stats.allocated_bytes or 0
    peak = used if stats.max_allocated_bytes is None else stats.max_allocated_bytes
    if used < 0 or (stats.reserved_bytes is not None and stats.reserved_bytes < used):
        msg = f"{used} bytes are allocated, and {stats.reserved_bytes} reserved"
        raise Wrong(msg)
    if peak < used:
        msg = f"{used} bytes are allocated, and their peak is {peak}"
        raise Wrong(msg)
    return used, peak


def _kept(leg: Leg, bench: Bench) -> str:
    """What is given back does not stay behind, round after round."""
    counted = leg.stats().allocated_bytes
    host = leg.allocator.traits().tier in (Tier.HOST, Tier.SHARED)
    content = pattern(LARGE, 1)

    def rounds(n: int) -> None:
        for i in range(n):
            with Held(leg, bench.seed + i) as held:
                held.take(0)
                held.tensor(held.take(LARGE)).copy_(content)
                held.write(next(reversed(list(held))))

    rounds(2)
    before = resident_bytes() if host else None
    rounds(ROUNDS)
    after = resident_bytes() if host else None
    if counted is not None and (now := leg.stats().allocated_bytes) != counted:
        msg = f"{ROUNDS} buffers came and went: {counted} bytes were counted before, {now} after"
        raise Wrong(msg)
    if before is not None and after is not None and after - before > ROUNDS * LARGE // 8:
        lost = (after - before) >> 20
        msg = f"{ROUNDS} buffers of 1 MiB came and went, and the process is {lost} MiB larger"
        raise Wrong(msg)
    return "" if counted is not None or before is not None else "nobody counts what stays behind"
