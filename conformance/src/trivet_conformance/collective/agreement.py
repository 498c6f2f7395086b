"""Agreement: ranks make the same choices; those that would not fail when a group is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from trivet.errors import GroupMismatch
from trivet_conformance.collective.judged import Wrong, case
from trivet_conformance.collective.rank import Here, world_sizes
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.comm_leg import CommLeg
from trivet_conformance.subject.leg import CORE

NAME: Final = "comm.agreement"
LEVEL: Final = "L1"


def cases(leg: CommLeg, ranks: Ranks, bench: Bench) -> Iterator[Case]:
    """That groups are made, alike, and that skewed ranks are told of both choices."""
    for size in world_sizes(leg.device, (2,) if bench.quick else (1, 2, 4)):
        yield case(f"made:{size}ranks", partial(_made, leg, ranks, size))
        for operation, providers in leg.candidates(size).items():
            mine = leg.offers().get(operation, ())
            if mine and len(providers) > 1 and size > 1:
                check = partial(_skewed, ranks, size, operation, providers[0], providers[1])
                yield case(f"skewed:{operation}:{size}ranks", check)
                if bench.quick:
                    break


def _made(leg: CommLeg, ranks: Ranks, size: int) -> str:
    """A group is made with everything that the plugin brings, and its tables are equal."""
    found = ranks.ask(size, made)
    first = found[0]
    for rank, row in enumerate(found):
        if row["table"] != first["table"]:
            differ = sorted(set(first["table"]) ^ set(row["table"]))
            msg = f"ranks 0 and {rank} have other tables: {', '.join(differ)}"
            raise Wrong(msg)
    if first["given_up"] and leg.owner != CORE:
        msg = f"a provider cannot be made: {first['given_up']}"
        raise Wrong(msg)
    return f"{len(first['table'])} bands"


def made(here: Here) -> dict[str, object]:
    """What a group with default choices is."""
    group = here.group()
    lines = group.explain().splitlines()
    table = [f"{r['operation']} {r['to_bytes']} {r['providers']}" for r in group.table()]
    group.close()
    return {
        "table": table,
        "given_up": "; ".join(x.strip() for x in lines if x.strip().startswith("given up: ")),
    }


def _skewed(ranks: Ranks, size: int, operation: str, one: str, other: str) -> str:
    said = ranks.ask(size, skewed, orders=[{operation: [one, other]}, {operation: [other, one]}])
    if len(set(said)) > 1:
        msg = f"ranks are told different things: {said}"
        raise Wrong(msg)
    if one not in said[0] or other not in said[0]:
        msg = f"the error does not name both {one} and {other}: {said[0]}"
        raise Wrong(msg)
    return str(said[0])


def skewed(here: Here, orders: Sequence[Mapping[str, Sequence[str]]]) -> str:
    """Rank 0 has another order list than the others; then one that all share works."""
    try:
        here.group(prefer=orders[here.rank > 0])
    except GroupMismatch as error:
        said = error.what
    else:
        msg = "ranks with other order lists get a group"
        raise Wrong(msg)
    group = here.group(prefer=orders[0])
    group.barrier()
    group.close()
    return said
