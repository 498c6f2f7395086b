"""Errors: wrong arguments harm nothing; a rank that is late, lost or aborted is told in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from trivet_conformance.collective import bodies, trouble
from trivet_conformance.collective.judged import Wrong, case
from trivet_conformance.collective.rank import world_sizes
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.subject.comm_leg import CommLeg

NAME: Final = "comm.errors"
LEVEL: Final = "L2"

MAIN: Final = ("all_reduce", "all_gather", "broadcast", "all_to_all")
"""Operations that are tried in trouble, those that the plugin brings first."""

SEGMENTS: Final = Path("/dev/shm")  # noqa: S108 - looked at, not written
SPARE: Final = 3
"""Descriptors more than after the second group that the fifth may leave open."""


def cases(leg: CommLeg, ranks: Ranks, bench: Bench) -> Iterator[Case]:
    """Each kind of trouble, for an operation or two."""
    offers = leg.offers()
    for size in world_sizes(leg.device, (2,) if bench.quick else (2, 4)):
        for operation in [o for o in MAIN if o in offers][: 1 if bench.quick else 4]:
            provider = offers[operation][0]
            prefer: dict[str, list[str]] = {operation: [provider]}
            troubles: dict[str, Callable[..., Any]] = {
                "arguments": trouble.arguments, "late": trouble.late, "slow": trouble.slow,
                "aborted": trouble.aborted,
            }  # fmt: skip
            for name, body in troubles.items():
                check = partial(_asked, ranks, size, body, prefer=prefer, operation=operation)
                yield case(f"{name}:{operation}:{size}ranks", check)
            check = partial(
                _asked,
                ranks,
                size,
                trouble.mismatch,
                prefer=prefer,
                operation=operation,
                check=True,
            )
            yield case(f"checked:{operation}:{size}ranks", check)
            for how in ("SIGKILL", "SIGSTOP"):
                lost = partial(_lost, ranks, size, prefer, operation, how)
                yield case(f"{how.lower()}:{operation}:{size}ranks", lost)
        yield from _comparing(leg, ranks, size)
        yield case(f"leaves_nothing:{size}ranks", partial(_leaves, ranks, size))


def _comparing(leg: CommLeg, ranks: Ranks, size: int) -> Iterator[Case]:
    """Methods that claim to see arguments that differ, without check mode."""
    for operation in MAIN:
        for provider in leg.offers().get(operation, ()):
            if leg.compares(operation, provider):
                check = partial(
                    _asked, ranks, size, trouble.mismatch, prefer={operation: [provider]},
                    operation=operation, check=False,
                )  # fmt: skip
                yield case(f"compares:{operation}:{size}ranks", check)


def _asked(ranks: Ranks, size: int, body: Callable[..., Any], **given: Any) -> None:
    ranks.ask(size, body, **given)


def _lost(ranks: Ranks, size: int, prefer: dict[str, list[str]], operation: str, how: str) -> None:
    timeout = 1.0 if how == "SIGSTOP" else ranks.timeout
    tokens = ranks.ask(
        size, trouble.lost, dies=(size - 1,), prefer=prefer, operation=operation, how=how,
        timeout=timeout,
    )  # fmt: skip
    _no_segments([t for t in tokens if t])


def _leaves(ranks: Ranks, size: int) -> str:
    found = ranks.ask(size, bodies.leaves, opened=5)
    _no_segments([token for row in found for token in row["tokens"]])
    for rank, row in enumerate(found):
        counts = row["descriptors"]
        if counts[-1] > counts[1] + SPARE:
            msg = f"rank {rank} keeps descriptors of groups that were closed: {counts}"
            raise Wrong(msg)
    return f"open descriptors after each group: {found[0]['descriptors']}"


def _no_segments(tokens: Sequence[str]) -> None:
    """Shared memory that is named after a group ends with the group."""
    if not sys.platform.startswith("linux"):
        return
    left = [p.name for p in SEGMENTS.iterdir() if any(t in p.name for t in tokens)]
    for name in left:
        (SEGMENTS / name).unlink(missing_ok=True)
    if left:
        msg = f"shared memory of groups that were closed is left: {', '.join(left)}"
        raise Wrong(msg)
