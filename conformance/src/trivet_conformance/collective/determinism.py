"""Determinism: the bits of reductions are what the method declares of them, level by level."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.collectives import DeviceGroup
from trivet.contracts.collectives import DETERMINISM, REDUCING
from trivet_conformance.collective.bodies import maker
from trivet_conformance.collective.judged import Wrong, case, lacks
from trivet_conformance.collective.numbers import Call, same, start
from trivet_conformance.collective.rank import Here, world_sizes
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.collective.value import named
from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding
from trivet_conformance.subject.comm_leg import CommLeg

NAME: Final = "comm.determinism"
LEVEL: Final = "L2"

QUICK: Final = (37, 9001)
FULL: Final = (1, 37, 1024, 9001, 300_000)
DTYPES: Final = ("float32", "bfloat16", "float16", "float64")


def cases(leg: CommLeg, ranks: Ranks, bench: Bench) -> Iterator[Case]:
    """One case for a method, a dtype and a size of the world."""
    for size in world_sizes(leg.device, (2,) if bench.quick else (2, 3, 4)):
        for operation, providers in leg.offers().items():
            for provider in providers if operation in REDUCING else ():
                for dtype in DTYPES[: 2 if bench.quick else 4]:
                    check = partial(_judge, ranks, size, operation, provider, dtype, bench)
                    yield case(named(operation, provider, size, dtype), check, dtype)


def _judge(
    ranks: Ranks, size: int, operation: str, provider: str, dtype: str, bench: Bench
) -> Finding | str:
    found = ranks.ask(
        size, bits, prefer={operation: [provider]}, operation=operation, provider=provider,
        dtype=dtype, counts=QUICK if bench.quick else FULL,
    )  # fmt: skip
    rows = [row["levels"] for row in found]
    if not rows[0]:
        return lacks(f"{provider} declares nothing of {operation} of {dtype}, {size} ranks")
    sums = [row["whole"] for row in found]
    if any(one != sums[0] for one in sums):
        msg = f"{provider}: {operation} of {dtype} is declared equal on all ranks, and is not"
        raise Wrong(msg)
    return f"holds: {', '.join(rows[0])}"


def bits(
    here: Here, prefer: Mapping[str, Sequence[str]], operation: str, provider: str, dtype: str,
    counts: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """Sums of noise, judged by every level that is declared at their size.

    Returns:
        The levels that were judged, and a hash of what all ranks must have in common.
    """
    group = here.group(prefer=prefer)
    seen: dict[str, None] = {}
    digest = hashlib.sha256()
    for count in counts:
        call = Call(operation, getattr(torch, dtype), count, "sum")
        if maker(group, call) != provider:
            continue
        levels = _declared(group, call)
        seen |= dict.fromkeys(levels)
        whole = _levels(here, group, call, levels, provider)
        if "ranks" in levels and operation == "all_reduce":
            digest.update(whole.view(torch.uint8).numpy().tobytes())
    group.close()
    return {"levels": list(seen), "whole": digest.hexdigest()}


def _declared(group: DeviceGroup, call: Call) -> tuple[str, ...]:
    """The levels of whoever makes a call; ``order`` has all others in it."""
    name = str(call.dtype).removeprefix("torch.")
    nbytes = call.nbytes(group.size)
    for row in group.table([name]):
        most = row["to_bytes"]
        if row["operation"] == call.operation and (most is None or nbytes <= most):
            levels = row["determinism"]
            return DETERMINISM if "order" in levels else tuple(levels)
    return ()


def noise(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers of very different sizes, whose sum depends on its order."""
    generator = torch.Generator().manual_seed(1000 + rank)
    raw = torch.randn(count, generator=generator, dtype=torch.float64)
    return (raw * torch.exp2(torch.arange(count).double() % 7)).to(dtype)


def _levels(here: Here, group: DeviceGroup, call: Call, levels: Sequence[str], who: str) -> Tensor:
    shares = group.size if call.operation == "reduce_scatter" else 1
    everyone = [noise(r, call.count * shares, call.dtype) for r in range(group.size)]
    x = everyone[group.rank].to(here.device)
    whole: Tensor = start(group, call, x).result().cpu()
    if "run" in levels:
        for _ in range(3):
            _equal(call, who, "run", start(group, call, x).result(), whole)
    if "slice" in levels and call.operation == "all_reduce" and call.count > 1:
        for part in (slice(1, call.count), slice(call.count // 3, call.count // 3 + 5)):
            found = group.all_reduce(x[part])
            if maker(group, Call("all_reduce", call.dtype, len(x[part]), "sum")) == who:
                _equal(call, who, f"slice {part.start}..{part.stop}", found, whole[part])
    if "order" in levels and whole.numel():
        exact = _in_order(everyone, call.dtype)
        if call.operation == "reduce_scatter":
            exact = exact[group.rank * call.count : (group.rank + 1) * call.count]
        _equal(call, who, "order", whole, exact)
    return whole


def _in_order(everyone: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(dtype, torch.float32)
    total = everyone[0].to(wide)
    for x in everyone[1:]:
        total = total + x.to(wide)
    return total.to(dtype)


def _equal(call: Call, who: str, level: str, got: Tensor, expected: Tensor) -> None:
    if problem := same(got, expected):
        msg = f"{who}: {call} is declared {level!r}, and is not: {problem}"
        raise Wrong(msg)
