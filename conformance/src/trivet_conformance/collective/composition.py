"""Composition: with each method of the plugin taken away in turn, results are the same.

What takes its place is core's composition of the plugin's other methods, or the backend of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from trivet.contracts.collectives import MOVEMENT, REDUCING
from trivet_conformance.collective import bodies
from trivet_conformance.collective.judged import Wrong, case
from trivet_conformance.collective.numbers import FUSED
from trivet_conformance.collective.rank import world_sizes
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.collective.value import named
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.comm_leg import CommLeg
from trivet_conformance.subject.leg import CORE

NAME: Final = "comm.composition"
LEVEL: Final = "L1"

COUNTS: Final = (1, 1025, 40_000)
COMPOSED: Final = "composed/"


def cases(leg: CommLeg, ranks: Ranks, bench: Bench) -> Iterator[Case]:
    """One case for each composition that may take a method's place."""
    for size in world_sizes(leg.device, (2,) if bench.quick else (2, 3, 4)):
        everybody = leg.candidates(size)
        brought = {p for own in leg.offers().values() for p in own} if leg.owner != CORE else set()
        for operation, providers in everybody.items():
            mine = [p for p in providers if p in brought or (not brought and p[:6] == "torch/")]
            for other in [p for p in providers if p.startswith(COMPOSED)] if mine else []:
                order = [other, *(p for p in providers if p not in (other, *mine)), *mine]
                check = partial(_judge, ranks, size, operation, order, bench)
                yield case(named(operation, other, size, "in_place_of_" + _short(mine[0])), check)
        messages = {
            o: [f"{COMPOSED}messages"] for o, p in everybody.items() if f"{COMPOSED}messages" in p
        }
        if f"{leg.plugin}/batch" in brought or not brought or "batch" in leg.offers():
            check = partial(_all, ranks, size, messages, bench)
            yield case(f"messages_alone:{size}ranks", check)


def _short(provider: str) -> str:
    return provider.partition("/")[2]


def _judge(ranks: Ranks, size: int, operation: str, order: list[str], bench: Bench) -> str:
    counts = COUNTS[: 2 if bench.quick else 3] if operation != "barrier" else (1,)
    found = ranks.ask(
        size, bodies.values, prefer={operation: order}, operation=operation,
        dtype=_dtype(operation), reductions=_reductions(operation), counts=counts,
    )[0]  # fmt: skip
    if not found:
        msg = f"without {order[-1]} nobody makes {operation}"
        raise Wrong(msg)
    return f"{found} calls"


def _all(ranks: Ranks, size: int, prefer: dict[str, list[str]], bench: Bench) -> str:
    total = 0
    for operation in prefer:
        total += ranks.ask(
            size, bodies.values, prefer=prefer, operation=operation, dtype=_dtype(operation),
            reductions=(), counts=COUNTS[: 2 if bench.quick else 3],
        )[0]  # fmt: skip
    return f"{total} calls"


def _dtype(operation: str) -> str:
    return "float32" if operation in REDUCING or operation not in MOVEMENT else "bfloat16"


def _reductions(operation: str) -> tuple[str, ...]:
    return ("sum",) if operation in (*REDUCING, FUSED) else ()
