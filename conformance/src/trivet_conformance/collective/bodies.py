"""What ranks do to judge results: calls whose right answer is known, in every form.

A body runs on every rank of a world, and raises ``Wrong`` with what broke the contract.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trivet.collectives import DeviceGroup
from trivet.contracts.collectives import REDUCING, UNSIZED, Message
from trivet.errors import CommUnsupported
from trivet_conformance.collective.judged import Wrong
from trivet_conformance.collective.numbers import (
    EPS,
    FUSED,
    ROOTED,
    Call,
    given,
    numbers,
    reduced,
    same,
    splits,
    start,
    wanted,
)
from trivet_conformance.collective.rank import Here

AROUND: Final = 33
"""Elements before and behind a tensor that is written in place, which must stay."""


LARGE: Final = 5000
"""Elements above which sums alone are tried."""


def maker(group: DeviceGroup, call: Call) -> str:
    """Who makes a call in a group; empty where nobody does."""
    name = str(call.dtype).removeprefix("torch.")
    computes = call.operation in REDUCING or call.operation == FUSED
    nbytes = 0 if call.operation in UNSIZED else call.nbytes(group.size)
    for row in group.table([name] if computes else [], call.reduction or "sum"):
        most = row["to_bytes"]
        if row["operation"] == call.operation and (most is None or nbytes <= most):
            return str(row["providers"][0]) if row["providers"] else ""
    return ""


def values(
    here: Here,
    prefer: Mapping[str, Sequence[str]],
    operation: str,
    dtype: str,
    reductions: Sequence[str],
    counts: Sequence[int],
    provider: str = "",
) -> int:
    """Every call of an operation in a group, in every form; only those that a provider makes.

    Returns:
        How many calls were judged.
    """
    group = here.group(prefer=prefer)
    judged = 0
    for reduction in reductions or ("",):
        for i, count in enumerate(counts):
            if count > LARGE and (reduction not in {"", "sum"} or operation == FUSED):
                continue
            root = (i + 1) % group.size if operation in ROOTED else 0
            call = Call(operation, getattr(torch, dtype), count, reduction, root)
            who = maker(group, call)
            if who and (not provider or who == provider):
                judge(here, group, call, who)
                judged += 1
    group.close()
    return judged


def judge(here: Here, group: DeviceGroup, call: Call, who: str) -> None:
    """One call in every form that it has."""
    if call.operation == "barrier":
        _barrier(group, who)
    elif call.operation == "batch":
        _batch(here, group, call, who)
    elif call.operation == FUSED:
        _fused(here, group, call, who)
    else:
        _plain(here, group, call, who)


def _plain(here: Here, group: DeviceGroup, call: Call, who: str) -> None:
    rank, size = group.rank, group.size
    x = given(call, rank, size)
    expected = wanted(call, rank, size)
    there = x.to(here.device)
    _must(call, who, "", same(_called(group, call, there), expected))
    _must(call, who, "its input after it", same(there, x))
    if call.count:
        loose = there.repeat_interleave(2)[::2]
        _must(call, who, "of a strided input", same(_called(group, call, loose), expected))
    if call.operation != "all_to_all_v":
        pair = [start(group, call, there) for _ in range(2)]
        for work in pair:
            _must(call, who, "two at once", same(work.result(), expected))
    if call.operation in {"all_reduce", "broadcast"}:
        _in_place(group, call, there, expected, who)


def _called(group: DeviceGroup, call: Call, x: Tensor) -> Tensor:
    if call.operation != "all_to_all_v":
        found: Tensor = start(group, call, x).result()
        return found
    rows = splits(call.count, group.size)
    return group.all_to_all(x, [row[group.rank] for row in rows], rows[group.rank])


def _in_place(group: DeviceGroup, call: Call, x: Tensor, expected: Tensor, who: str) -> None:
    """The form that writes its argument, a part of a larger tensor that begins anywhere."""
    around = numbers(group.rank + 5, len(x) + 2 * AROUND, call.dtype)
    memory = around.to(x.device, copy=True)
    part = memory[AROUND : AROUND + len(x)]
    part.copy_(x)
    if call.operation == "broadcast":
        group.broadcast_(part, call.root)
    else:
        group.all_reduce_(part, call.reduction)
    _must(call, who, "in place", same(part, expected))
    for name, piece in {"before": slice(0, AROUND), "behind": slice(-AROUND, None)}.items():
        _must(call, who, f"memory {name} it", same(memory[piece], around[piece]))


def _barrier(group: DeviceGroup, who: str) -> None:
    """It ends only when every rank has come: what each wrote before is there after it."""
    for turn in range(3):
        group.store.set(f"came/{turn}/{group.rank}", "1")
        group.barrier()
        for rank in range(group.size):
            if not group.store.check([f"came/{turn}/{rank}"]):
                msg = f"{who}: barrier ends before rank {rank} has come"
                raise Wrong(msg)


def _batch(here: Here, group: DeviceGroup, call: Call, who: str) -> None:
    """Two messages to each neighbour arrive in order, together and from one batch to the next."""
    if group.size == 1:
        return
    rank, size, n = group.rank, group.size, call.count
    to, source = (rank + 1) % size, (rank - 1) % size
    for both in (True, False):
        out = [numbers(rank, k, call.dtype).to(here.device) for k in (n, n + 3)]
        inp = [torch.zeros_like(x) for x in out]
        messages = [Message(False, source, x) for x in inp] + [Message(True, to, x) for x in out]
        if both:
            group.batch(messages)
        else:
            works = [group.start.batch([m]) for m in messages]
            for work in works:
                work.wait()
        for got, k in zip(inp, (n, n + 3), strict=True):
            words = "in one batch" if both else "one batch each"
            _must(call, who, words, same(got, numbers(source, k, call.dtype)))


def _fused(here: Here, group: DeviceGroup, call: Call, who: str) -> None:
    """The sum and the residual are exact; the norm behind them is near the formula's."""
    hidden = 16
    n, size = call.count * hidden, group.size
    x = numbers(group.rank, n, call.dtype, "sum").view(-1, hidden)
    residual = numbers(size, n, call.dtype, "sum").view(-1, hidden)
    weight = torch.ones(hidden, dtype=call.dtype)
    a, b, c = (t.to(here.device) for t in (x, residual, weight))
    out, total = group.all_reduce_add_rms_norm(a, b, c, EPS)
    exact = reduced(size, n, call.dtype, "sum").view(-1, hidden).double() + residual.double()
    _must(call, who, "the residual", same(total, exact.to(call.dtype)))
    right = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + EPS)
    worst = (out.cpu().double() - right).abs().max().item() if n else 0.0
    if not worst <= 4 * torch.finfo(call.dtype).eps * hidden**0.5:
        _must(call, who, "the norm", f"it is {worst:.3g} off")


def parts(here: Here, prefer: Mapping[str, Sequence[str]], provider: str) -> bool:
    """Groups of every second rank at the same time: each reduces among its own members."""
    mine = [r for r in range(here.size) if r % 2 == here.rank % 2]
    group = here.group(ranks=mine, prefer=prefer)
    call = Call("all_reduce", torch.float32, 5, "sum")
    made = maker(group, call) == provider
    if made:
        got = group.all_reduce(numbers(here.rank, 5, torch.float32, "sum").to(here.device))
        exact = sum(numbers(r, 5, torch.float32, "sum").double() for r in mine)
        assert isinstance(exact, Tensor)  # noqa: S101 - there is a member
        _must(call, provider, f"among ranks {mine}", same(got, exact.float()))
    group.close()
    return made


def edges(
    here: Here, prefer: Mapping[str, Sequence[str]], provider: str, call: Call, *, inside: bool
) -> bool:
    """A call at an edge of a domain: right whoever makes it, or refused with the group unharmed.

    Returns:
        Whether the provider made it, or was rightly left out.
    """
    group = here.group(prefer=prefer)
    who = maker(group, call)
    if who:
        judge(here, group, call, who)
        rows = [c for c in group.calls()["calls"] if c["operation"] == call.operation]
        used = {str(c["provider"]) for c in rows[:1]}
        if inside and who == provider and used != {provider}:
            msg = f"{call} is said to be made by {provider} and is made by {used}"
            raise Wrong(msg)
    else:
        _refused(here, group, call)
    group.close()
    return (who == provider) is inside


def _refused(here: Here, group: DeviceGroup, call: Call) -> None:
    try:
        start(group, call, given(call, group.rank, group.size).to(here.device)).result()
    except CommUnsupported:
        pass
    else:
        msg = f"nobody makes {call}, and it is not refused"
        raise Wrong(msg)
    plain = Call("all_gather", torch.uint8, 3)
    judge(here, group, plain, maker(group, plain))


def claimed(
    here: Here, prefer: Mapping[str, Sequence[str]], operation: str, provider: str,
    dtypes: Sequence[str], reductions: Sequence[str], counts: Sequence[int],
) -> dict[str, list[str]]:  # fmt: skip
    """Every dtype and reduction that a provider claims, at a few sizes: dtype -> reductions."""
    group = here.group(prefer=prefer)
    found: dict[str, list[str]] = {}
    for name in dtypes:
        dtype = getattr(torch, name)
        for reduction in reductions:
            if not _means(dtype, reduction):
                continue
            calls = [Call(operation, dtype, n, reduction) for n in counts]
            for call in [c for c in calls if maker(group, c) == provider]:
                judge(here, group, call, provider)
                found.setdefault(name, []).append(reduction)
    group.close()
    return {name: list(dict.fromkeys(ops)) for name, ops in found.items()}


def _means(dtype: torch.dtype, reduction: str) -> bool:
    """Whether a reduction means anything for a dtype."""
    if reduction in {"band", "bor", "bxor"}:
        return not (dtype.is_floating_point or dtype.is_complex)
    if dtype.is_complex:
        return reduction in {"sum", "prod"}
    return dtype != torch.bool or reduction in {"max", "min"}


def _must(call: Call, who: str, form: str, problem: str) -> None:
    if problem:
        where = f", {form}" if form else ""
        msg = f"{who}: {call}{where}: {problem}"
        raise Wrong(msg)


def leaves(here: Here, opened: int) -> dict[str, Any]:
    """Groups that are opened, used and closed leave no descriptor open; their tokens are told."""
    folder = Path("/proc/self/fd")
    tokens, counts = [], []
    calls = (Call("all_reduce", torch.float32, 5, "sum"), Call("all_gather", torch.uint8, 3))
    for _ in range(opened):
        group = here.group()
        for call in calls:
            if who := maker(group, call):
                judge(here, group, call, who)
        tokens.append(group.calls()["token"])
        group.close()
        group.close()
        del group
        gc.collect()
        counts.append(len(list(folder.iterdir())) if folder.is_dir() else 0)
    return {"tokens": tokens, "descriptors": counts}
