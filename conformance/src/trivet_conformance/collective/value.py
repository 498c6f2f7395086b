"""Value: every method gives exactly the right numbers, in every form, at every kind of size.

What a rank brings depends on the rank and on the index, and no order of reduction rounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from trivet.contracts.collectives import MOVEMENT, REDUCING
from trivet_conformance.collective import bodies
from trivet_conformance.collective.judged import case, lacks
from trivet_conformance.collective.numbers import FUSED
from trivet_conformance.collective.rank import world_sizes
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding
from trivet_conformance.subject.comm_leg import CommLeg

NAME: Final = "comm.value"
LEVEL: Final = "L1"

QUICK: Final = (0, 1, 1025)
FULL: Final = (0, 1, 3, 1023, 1024, 1025, 40_000, (1 << 18) + 1)
"""Elements of a rank's part; the quick ones in one dtype each side of a power of two."""

REDUCED: Final = ("float32", "bfloat16", "int64")
MOVED: Final = ("bfloat16", "uint8")
FUSED_DTYPES: Final = ("float32",)


def sizes(bench: Bench) -> tuple[int, ...]:
    """Sizes of worlds."""
    return (2,) if bench.quick else (1, 2, 4)


def cases(leg: CommLeg, ranks: Ranks, bench: Bench) -> Iterator[Case]:
    """One case for a method, a dtype and a size of the world."""
    for size in world_sizes(leg.device, sizes(bench)):
        for operation, providers in leg.offers().items():
            for provider in providers:
                for dtype in _dtypes(operation, quick=bench.quick):
                    check = partial(_judge, ranks, size, operation, provider, dtype, bench)
                    yield case(named(operation, provider, size, dtype), check, dtype)
                if operation == "all_reduce" and size > 1:
                    name = named(operation, provider, size, "parts")
                    yield case(name, partial(_parts, ranks, size, operation, provider))


def named(operation: str, provider: str, size: int, what: str) -> str:
    """The name of a case."""
    return f"{operation}:{provider.partition('/')[2]}:{what}:{size}ranks"


def _dtypes(operation: str, *, quick: bool) -> tuple[str, ...]:
    if operation in REDUCING:
        return REDUCED[: 2 if quick and operation != "all_reduce" else 3]
    if operation in MOVEMENT:
        return MOVED[: 1 if quick else 2]
    return FUSED_DTYPES if operation == FUSED else ("uint8",)


def _judge(
    ranks: Ranks, size: int, operation: str, provider: str, dtype: str, bench: Bench
) -> Finding | str:
    reductions = () if operation not in REDUCING else ("sum", "max") if bench.quick else (
        "sum", "prod", "max", "min")  # fmt: skip
    counts: tuple[int, ...] = QUICK if bench.quick else FULL
    if operation == "barrier":
        counts = (1,)
    found = ranks.ask(
        size, bodies.values, prefer={operation: [provider]}, operation=operation, dtype=dtype,
        reductions=("sum",) if operation == FUSED else reductions, counts=counts,
        provider=provider,
    )  # fmt: skip
    if not found[0]:
        return lacks(f"{provider} claims no {operation} of {dtype} among {size} ranks")
    return f"{found[0]} calls"


def _parts(ranks: Ranks, size: int, operation: str, provider: str) -> Finding | None:
    made = ranks.ask(size, bodies.parts, prefer={operation: [provider]}, provider=provider)
    return None if any(made) else lacks(f"{provider} makes no {operation} in parts of a world")
