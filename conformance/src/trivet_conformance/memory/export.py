"""Export: every way that the traits promise works in another process; others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from trivet.contracts.memory import Allocator, Exporter
from trivet.errors import MemoryFault
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.child import Child, NoAnswer
from trivet_conformance.memory.held import Held, pattern
from trivet_conformance.memory.judged import Check, Wrong, asked, case, lacks, not_run, refused
from trivet_conformance.result import Finding
from trivet_conformance.subject.leg import Leg

NAME: Final = "memory.export"
LEVEL: Final = "L1"

SIZE: Final = 70_003
NO_KIND: Final = "no such kind"


def provider(leg: Leg) -> str:
    """Whose it is; core exports nothing of its own."""
    return leg.plugin


def cases(leg: Leg, bench: Bench) -> Iterator[Case]:
    """Two cases a kind: what is no export, and another process."""
    kinds = sorted(leg.allocator.traits().exportable)
    if not leg.brings(Exporter):
        yield case("kinds", _promised if kinds else lacks(f"{leg.plugin} brings no Exporter"),
                   leg, bench)  # fmt: skip
        return
    if not leg.brings(Allocator) or not kinds:
        yield case("kinds", lacks("no buffer here promises a way of export"), leg, bench)
        return
    for kind in kinds:
        yield case(f"{kind}:refused", _refused(kind), leg, bench)
        yield case(f"{kind}:process", _process(kind), leg, bench)


def _promised(leg: Leg, bench: Bench) -> None:
    del bench
    kinds = ", ".join(sorted(leg.allocator.traits().exportable))
    msg = f"the traits say that buffers are exportable by {kinds}, and there is no Exporter"
    raise Wrong(msg)


def _process(kind: str) -> Check:
    """Another process opens what is here, exports what is its own, and ends without freeing it."""

    def check(leg: Leg, bench: Bench) -> Finding | str:
        if not leg.recipe:
            return not_run("another process cannot make this memory")
        try:
            with Child(leg.recipe) as child:
                _opened(leg, bench, kind, child)
                blob = child.ask("owns", nbytes=SIZE, kind=kind, number=93)
                _theirs(leg, kind, blob)
                if status := child.end():
                    msg = f"the process that opens and exports ends with status {status}"
                    raise Wrong(msg)
        except NoAnswer as problem:
            msg = f"the process that opens and exports: {problem}"
            raise Wrong(msg) from problem
        return _ended(leg, kind, blob)

    return check


def _opened(leg: Leg, bench: Bench, kind: str, child: Child) -> None:
    """It sees what is written here, and this process what is written there."""
    with Held(leg, bench.seed) as held:
        other, key = held.take(SIZE), held.take(SIZE)
        raw = held.tensor(key)
        held.lost(key)
        raw.copy_(pattern(SIZE, 90))
        blob = asked(leg.provided.export, raw, kind)
        if not isinstance(blob, bytes):
            msg = f"export returns {type(blob).__name__}, no bytes"
            raise Wrong(msg)
        raw.copy_(pattern(SIZE, 91))  # shared memory, no copy of it
        if raw.device.type != "cpu":
            torch.accelerator.synchronize(raw.device)
        told = child.ask("opens", blob=blob, kind=kind, number=91, after=92)
        if told != f"{SIZE} bytes":
            msg = f"the process that opens {SIZE} bytes: {told}"
            raise Wrong(msg)
        if not torch.equal(raw.cpu(), pattern(SIZE, 92)):
            msg = "the owner does not see what the other process wrote"
            raise Wrong(msg)
        held.verify(other)


def _theirs(leg: Leg, kind: str, blob: bytes) -> None:
    """What the other process exported is open here while its owner lives."""
    found = asked(leg.provided.open, blob, kind)
    same = torch.equal(found.cpu(), pattern(SIZE, 93))
    asked(leg.provided.close, found)
    if not same:
        msg = "what another process exported has other contents here"
        raise Wrong(msg)


def _ended(leg: Leg, kind: str, blob: bytes) -> str:
    """What a process exported that has ended is refused, or opens as it was left."""
    try:
        found = leg.provided.open(blob, kind)
    except MemoryFault:
        return "refused once its owner has ended"
    except Exception as error:
        msg = f"opening what an ended process exported raises {type(error).__name__}: {error}"
        raise Wrong(msg) from error
    same = torch.equal(found.cpu(), pattern(SIZE, 93))
    asked(leg.provided.close, found)
    if not same:
        msg = "what an ended process exported opens with other contents"
        raise Wrong(msg)
    return "opens after its owner has ended"


def _refused(kind: str) -> Check:
    """An unknown kind and bytes that are no export get the typed error."""

    def check(leg: Leg, bench: Bench) -> None:
        with Held(leg, bench.seed) as held:
            raw = held.tensor(held.take(SIZE))
            blob = asked(leg.provided.export, raw, kind)
            refused(MemoryFault, f"export by {NO_KIND!r}", leg.provided.export, raw, NO_KIND)
            refused(MemoryFault, f"open by {NO_KIND!r}", leg.provided.open, blob, NO_KIND)
            for wrong in (b"", b"\0" * 64, bytes(reversed(blob))):
                refused(MemoryFault, "opening what is no export", leg.provided.open, wrong, kind)

    return check
