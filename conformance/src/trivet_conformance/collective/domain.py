"""Domain: what a method claims, it makes; at every edge of a claim the result is right.

Every dtype and reduction that is claimed is tried, and sizes at and beyond every edge. Beyond it
somebody else makes the call, or it is refused and the group is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch

from trivet.contracts.collectives import REDUCING, REDUCTIONS, UNSIZED, offers_of, provides
from trivet.contracts.terms.value import Between
from trivet_conformance.collective import bodies
from trivet_conformance.collective.judged import case, lacks
from trivet_conformance.collective.numbers import DTYPES, FUSED, SHARED_OUT, Call
from trivet_conformance.collective.rank import world_sizes
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.collective.value import named
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding
from trivet_conformance.subject.comm_leg import CommLeg

NAME: Final = "comm.domain"
LEVEL: Final = "L1"

COUNTS: Final = (7, 3000)
"""Elements of a rank's part, where all dtypes are tried."""

MOST: Final = 4 << 20
"""Bytes beyond which no edge is tried."""

QUICK_MOST: Final = 256 << 10


def cases(leg: CommLeg, ranks: Ranks, bench: Bench) -> Iterator[Case]:
    """One case for the claims of a reduction, one for an edge."""
    for size in world_sizes(leg.device, (2,) if bench.quick else (2, 4)):
        for operation, providers in leg.offers().items():
            for provider in providers:
                claims = _claims(leg, operation, provider)
                if operation in REDUCING:
                    check = partial(_claimed, ranks, size, operation, provider, bench)
                    yield case(named(operation, provider, size, "claims"), check)
                for nbytes, inside in _edges(claims, operation, bench):
                    made = partial(_edge, ranks, size, operation, provider, nbytes, inside, claims)
                    yield case(named(operation, provider, size, f"{nbytes}B"), made)


def _claims(leg: CommLeg, operation: str, provider: str) -> tuple[provides, ...]:
    """The marks of the plugin's method; core's own are found by what its groups say."""
    return tuple(
        claim
        for cls in leg.classes()
        for claim in offers_of(cls)
        if claim.operation == operation and f"{leg.plugin}/{claim.name}" == provider
    )


def _edges(claims: Sequence[provides], operation: str, bench: Bench) -> Iterator[tuple[int, bool]]:
    """Sizes in bytes at the edges of all claims, and whether they are inside of one."""
    if operation in (*UNSIZED, FUSED):
        return
    most = QUICK_MOST if bench.quick else MOST
    terms = [[t for t in c.domain if isinstance(t, Between) and t.path == "nbytes"] for c in claims]
    at: set[int] = set()
    for term in [t for own in terms for t in own]:
        at |= {term.low - 16, term.low} if term.low else set()
        at |= {term.high, term.high + 16} if term.high is not None else set()
    for nbytes in sorted(n for n in at if 0 <= n <= most and n % 16 == 0):
        yield nbytes, any(all(_within(nbytes, t) for t in own) for own in terms)


def _within(nbytes: int, term: Any) -> bool:
    return (term.low or 0) <= nbytes and (term.high is None or nbytes <= term.high)


def _claimed(ranks: Ranks, size: int, operation: str, provider: str, bench: Bench) -> Finding | str:
    found = ranks.ask(
        size, bodies.claimed, prefer={operation: [provider]}, operation=operation,
        provider=provider, dtypes=DTYPES, reductions=REDUCTIONS,
        counts=COUNTS[:1] if bench.quick else COUNTS,
    )[0]  # fmt: skip
    if not found:
        return lacks(f"{provider} claims nothing of {operation} among {size} ranks")
    return "; ".join(f"{name}: {', '.join(ops)}" for name, ops in found.items())


def _edge(
    ranks: Ranks, size: int, operation: str, provider: str, nbytes: int, inside: bool,
    claims: Sequence[provides],
) -> str | None:  # fmt: skip
    shares = size if operation in SHARED_OUT and operation != "scatter" else 1
    dtype, reduction = torch.uint8, ""
    if operation in REDUCING:
        dtype, reduction = _first(claims)
    call = Call(operation, dtype, nbytes // (dtype.itemsize * shares), reduction)
    agrees = ranks.ask(
        size, bodies.edges, prefer={operation: [provider]}, provider=provider, call=call,
        inside=inside,
    )  # fmt: skip
    return None if all(agrees) else "another term of its domain decides"


def _first(claims: Sequence[provides]) -> tuple[torch.dtype, str]:
    """A dtype and a reduction that the claims are about."""
    text = " ".join(str(term) for claim in claims for term in claim.domain)
    name = next((n for n in DTYPES if n in text), "float32")
    return getattr(torch, name), "sum"
