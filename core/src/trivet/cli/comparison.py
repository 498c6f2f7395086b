"""Two providers of one operator side by side: results, errors, time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from trivet.binding.binder import Binder
from trivet.binding.checks import Watch
from trivet.binding.prepared import prepare
from trivet.contracts.declaration import Operator
from trivet.contracts.signature import REQUIRED
from trivet.selection.choose import Arm
from trivet.selection.on_call import on_call

BLOCK_SECONDS: Final = 2e-3
"""How long one timed block lasts at least; shorter calls are repeated within it."""

_STEP: Final = ("block_table", "query_start", "seq_lens", "max_query_len", "max_seq_len")


@dataclass(frozen=True)
class Contender:
    """A provider ready to run one call."""

    provider: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self) -> Any:
        """Runs the call once."""
        return self.function(**self.arguments)


@dataclass(frozen=True)
class Selected:
    """A provider that accepts a call, and what is promised to it."""

    arm: Arm
    facts: Mapping[str, Any]

    def contender(self, arguments: Mapping[str, Any]) -> Contender:
        """The provider with its weight packed and its step prepared; this runs its own code."""
        implementation, ready = self.arm.implementation, dict(arguments)
        if implementation.operator.prepare is not None:
            weight, bias = arguments["packed"][0], arguments.get("bias")
            chosen = {self.arm.provider: implementation}
            handle = prepare("ab", chosen, self.facts, weight, bias)
            ready["packed"] = handle.packs[self.arm.provider]
        if implementation.claim.prepare_step is not None:
            given = [arguments[name] for name in _STEP]
            ready["schedule"] = implementation.claim.prepare_step(self.facts, *given)
        return Contender(self.arm.provider, self.arm.function, ready)


def select(
    binder: Binder, op: Operator, name: str, provider: str, arguments: Mapping[str, Any]
) -> Selected | str:
    """A provider for these arguments of an operator's form, or why it does not run them.

    Raises:
        UnknownName: there is no such provider of the operator.
        ConfigError: the settings forbid it.
    """
    policy = binder.policy(prefer={op.name: provider})
    choice = binder.choose(name, _facts(op, arguments), policy)
    row = next(r for r in on_call(choice, arguments) if r.provider == provider)
    if row.verdict != "runs":
        why = row.note.rpartition(", but ")[2] if row.elsewhere else "outside its domain"
        return f"{why}: {row.reason}"
    arm = next(a for a in choice.arms if a.provider == provider)
    return Selected(arm, dict(choice.facts.values))


def _facts(op: Operator, arguments: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {n: arguments[n] for n in op.scalars}
    facts |= op.dims(arguments)
    for name in op.tensors:
        if (tensor := arguments[name]) is None:
            facts[name] = None
        else:
            facts[f"{name}.dtype"] = tensor.dtype
    return {n: v for n, v in facts.items() if v is not REQUIRED}


# --- results ---------------------------------------------------------------------------------


def fresh(value: Any) -> Any:
    """A copy of an argument, so that no provider reads what another one wrote."""
    if isinstance(value, list):
        return [fresh(v) for v in value]
    return value.clone() if isinstance(value, Tensor) else value


def results(
    op: Operator, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> list[Tensor]:
    """What a call of the plain form gives, on copies of what it writes."""
    copies = {n: arguments[n].clone() for n in op.writes}
    given = function(**(dict(arguments) | copies))
    if op.writes:
        return list(copies.values())
    return [given] if isinstance(given, Tensor) else list(given)


def watched(op: Operator, form: str, one: Contender) -> list[Tensor]:
    """What a call of a form gives, under watch.

    Raises:
        ContractBroken: it changed an input, or its results are not what is declared.
    """
    call = dict(one.arguments)
    written = [n for n in op.written(form) if isinstance(call.get(n), Tensor)]
    for name in written:
        call[name] = call[name].clone()
    if form == "out":
        call["out"] = buffers(op, call)
    watch = Watch(op, form, one.provider, call, sample=False)
    returned = one.function(**call)
    for problem in watch.judge(returned):
        raise problem
    if form == "out":
        return [call["out"]] if isinstance(call["out"], Tensor) else list(call["out"])
    if form == "inplace":
        order = op.inplace if not op.inplace_only else dict.fromkeys(op.writes, 0)
        return [call[n] for n in sorted(written, key=order.__getitem__)]
    if op.inplace_only:
        return [call[n] for n in written]
    return [returned] if isinstance(returned, Tensor) else list(returned)


def buffers(op: Operator, arguments: Mapping[str, Any]) -> Tensor | list[Tensor]:
    """What the out form writes to, filled with what no right result is."""
    place = next(a.device for a in arguments.values() if isinstance(a, Tensor))
    out = [torch.empty(shape, dtype=dtype, device=place).fill_(
               math.nan if dtype.is_floating_point else -1)
           for shape, dtype in op.result_meta(arguments)]  # fmt: skip
    return out[0] if op.signature.packing == "one" else out


def difference(got: Sequence[Tensor], want: Sequence[Tensor]) -> dict[str, Any]:
    """Statistics of the difference between two sets of results.

    Returns:
        ``max`` and ``mean`` of the absolute difference and ``relative_rms`` over floating
        elements that are finite in both (None without any); ``mismatches`` counts integers that
        differ and elements that are finite on one side only; ``elements`` counts all.
    """
    found: dict[str, Any] = {"max": None, "mean": None, "relative_rms": None}
    elements = sum(t.numel() for t in want)
    errors, scale, mismatches = [], [], 0
    for a, b in zip(got, want, strict=True):
        if not a.is_floating_point():
            mismatches += int((a.cpu() != b.cpu()).sum())
            continue
        x, y = a.cpu().double().flatten(), b.cpu().double().flatten()
        finite = x.isfinite() & y.isfinite()
        same = (x == y) | (x.isnan() & y.isnan())
        mismatches += int((~finite & ~same).sum())
        errors.append((x - y)[finite].abs())
        scale.append(y[finite])
    error = torch.cat(errors) if errors else torch.empty(0)
    if error.numel():
        size, norm = float(error.norm()), float(torch.cat(scale).norm())
        found = {"max": float(error.max()), "mean": float(error.mean()),
                 "relative_rms": size / norm if norm else (math.inf if size else 0.0)}  # fmt: skip
    return found | {"mismatches": mismatches, "elements": elements}


# --- time ------------------------------------------------------------------------------------


@dataclass
class Times:
    """Seconds a call of each contender, one entry a round."""

    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def medians(self) -> tuple[float, float]:
        """The median of each."""
        return statistics.median(self.seconds[0]), statistics.median(self.seconds[1])


def interleaved(
    pair: tuple[Contender, Contender], rounds: int, clock: Callable[[], float]
) -> Times:
    """Times both in turns; which goes first alternates, so that drift hits both alike."""
    repeats = [_repeats(one, clock) for one in pair]
    times = Times()
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            start = clock()
            for _ in range(repeats[which]):
                pair[which]()
            times.seconds[which].append((clock() - start) / repeats[which])
    return times


def _repeats(one: Contender, clock: Callable[[], float]) -> int:
    """Calls that fill a block; measuring it warms the caches."""
    repeats = 1
    while True:
        start = clock()
        for _ in range(repeats):
            one()
        if (spent := clock() - start) >= BLOCK_SECONDS or repeats >= 1 << 16:
            return repeats
        repeats = min(1 << 16, max(2 * repeats, int(repeats * BLOCK_SECONDS / max(spent, 1e-9))))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets the threads of torch within a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def clock_for(count: int) -> Callable[[], float]:
    """CPU time of this thread for one thread, else time on the wall."""
    return time.thread_time if count == 1 else time.perf_counter
