"""Stream: memory that was given back is not used before the stream that gave it is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from trivet.contracts.memory import Allocator
from trivet_conformance.families.case import Case
from trivet_conformance.families.stream import FACTORS, unsupported
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.held import TAG
from trivet_conformance.memory.judged import Wrong, asked, case, not_run
from trivet_conformance.result import Finding
from trivet_conformance.subject.leg import Leg

NAME: Final = "memory.stream"
LEVEL: Final = "L2"

SIZE: Final = 1 << 20
PRODUCTS: Final = 8


def provider(leg: Leg) -> str:
    """Whose allocator it is."""
    return leg.owner(Allocator)


def cases(leg: Leg, bench: Bench) -> Iterator[Case]:
    """The order of giving back and allocating, on one stream and over two."""
    yield case("reuse", _reuse, leg, bench)


def _reuse(leg: Leg, bench: Bench) -> Finding | None:
    """Late writes of the stream that gave a buffer back do not reach its next owner."""
    del bench
    if reason := unsupported(leg.device):
        return not_run(f"{reason}: nothing can be used before it is done")
    late, other = torch.Stream(device=leg.device), torch.Stream(device=leg.device)
    on = torch.get_device_module(leg.device).stream
    factor = torch.ones(FACTORS, FACTORS, device=leg.device)
    torch.accelerator.synchronize(leg.device)
    for second in (late, other):
        with on(late):
            first = asked(leg.allocator.allocate, SIZE, tag=TAG)
            for _ in range(PRODUCTS):
                torch.mm(factor, factor)
            first.fill_(1)
            asked(leg.allocator.deallocate, first)
            del first
        with on(second):
            found = asked(leg.allocator.allocate, SIZE, tag=TAG)
            found.fill_(2)
        torch.accelerator.synchronize(leg.device)
        right = bool((found == 2).all())
        with on(second):
            asked(leg.allocator.deallocate, found)
        del found
        if not right:
            where = "on the same stream" if second is late else "on another stream"
            msg = f"a buffer that was given back is written late by its old owner, {where}"
            raise Wrong(msg)
    return None
