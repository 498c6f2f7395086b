"""Checks around the calls: plain results, memory that grows, and plugins that detect the kit."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trivet_conformance.calls.calling import ProviderFault, invoke, on_cpu
from trivet_conformance.calls.fresh import NoFreshCall, fresh_call, packed
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.around import equal, flipped
from trivet_conformance.families.case import Case, base_points, claimed
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.running.run import Place, Watch, checks_of, grouped, place_of
from trivet_conformance.subject.subject import Subject, Target

Check = tuple[Place, Callable[[], Finding]]

WINDOW: Final = 24
"""Calls between two looks at the memory of the process."""

GROWTH: Final = 256 * 1024
"""Bytes a call by which memory may not grow, window after window."""


@dataclass(frozen=True)
class Sample:
    """One call of a target that is made twice: here and in a plain process."""

    target: Target
    point: Point
    layout: Layout


CHECKS: Final = ("result", "memory", "detection")


def harness_checks(subject: Subject, bench: Bench, case: str, watch: Watch) -> Iterator[Check]:
    """The checks of every implementation that are to be run; as for ``every_check``."""
    for target in grouped(subject.targets, bench):
        group = place_of(target, "harness")
        if (not case or case.startswith(group.start)) and watch.group(group):
            yield from checks_of(_cases(target, bench), group, case, watch)


def _cases(target: Target, bench: Bench) -> Iterator[Case]:
    try:
        sample = _sample(target, bench)
    except ProviderFault:
        return  # what families tell at length
    if sample is None:
        return
    for name, check in zip(CHECKS, (_plain_result, _memory, _detection), strict=True):
        yield Case(f"{target.label}:{name}", "", partial(check, sample, bench))


def _sample(target: Target, bench: Bench) -> Sample | None:
    for dtypes, refusal in claimed(target):
        if refusal:
            continue
        found = base_points(target, dtypes, bench, 3, 1)
        if found:
            return Sample(target, *found[0])
    return None


def _placed(sample: Sample, bench: Bench) -> Placed:
    placed = sample.target.lay_out(bench, sample.point, sample.layout)
    if placed is None:
        msg = f"no such call: {sample.point.text}"
        raise LookupError(msg)
    return placed


def _plain_result(sample: Sample, bench: Bench) -> Finding:
    """Results are torch's own tensors, with memory behind them."""
    target = sample.target
    try:
        outcome = invoke(
            target.op, target.form, target.implementation.function, _placed(sample, bench)
        )
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, sample.point.to_json())
    for i, found in enumerate(outcome.results):
        if isinstance(found, Tensor) and type(found) is not Tensor:
            kind = f"{type(found).__module__}.{type(found).__qualname__}"
            reason = f"result {i} is a {kind}, a subclass that may do its work later or never"
            return Finding(Status.FAIL, reason, 1.0, sample.point.to_json())
    return Finding(Status.PASS)


def _memory(sample: Sample, bench: Bench) -> Finding:
    """Calls that are repeated do not need more and more memory."""
    target, function = sample.target, sample.target.implementation.function
    placed = _placed(sample, bench)

    def grow() -> int:
        before = _resident(target)
        for _ in range(WINDOW):
            invoke(target.op, target.form, function, placed)
        gc.collect()
        return _resident(target) - before

    try:
        grow()  # caches fill
        grown = [grow() for _ in range(3)]
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, sample.point.to_json())
    if min(grown) > WINDOW * GROWTH:
        each = min(grown) / WINDOW / 2**20
        reason = f"every call leaves {each:.2f} MiB behind, over {3 * WINDOW} calls of one shape"
        return Finding(Status.FAIL, reason, 1.0, sample.point.to_json())
    return Finding(Status.PASS)


def _resident(target: Target) -> int:
    """Bytes that the process has in memory, and those that torch counts on the device."""
    where, total = target.device.torch, 0
    if where.type != "cpu":
        module = torch.get_device_module(where)
        total += module.memory_allocated() if hasattr(module, "memory_allocated") else 0
    file = Path("/proc/self/statm")
    if file.exists():
        total += int(file.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


# --- a process that is not under test --------------------------------------------------------


def _detection(sample: Sample, bench: Bench) -> Finding:
    """A call in a process that only imports trivet gives what the same call gives here."""
    target, inputs = sample.target, sample.point.to_json()
    placed = _placed(sample, bench)
    device = target.device
    try:
        given = packed(target.implementation, placed)
        here = invoke(target.op, target.form, target.implementation.function, placed)
        there = fresh_call(target.implementation, device.info.kind, given, device.torch)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    except NoFreshCall as problem:
        if problem.what == "unknown":
            return Finding(Status.NOT_RUN, str(problem), inputs=inputs)
        reason = f"in an ordinary process it {problem.what}: {problem}"
        return Finding(Status.FAIL, reason, 1.0, inputs)
    return _compare(sample, bench, on_cpu(here.results), there)


def _compare(sample: Sample, bench: Bench, here: list[Any], there: list[Any]) -> Finding:
    target, inputs = sample.target, sample.point.to_json()
    if equal(here, there):
        seen = bool(here) and isinstance(here[0], Tensor) and bool(here[0].numel())
        if seen and equal(here, [flipped(here[0]), *there[1:]]):
            reason = "the check has no power: it accepts a flipped bit"
            return Finding(Status.ERROR, reason, inputs=inputs)
        return Finding(Status.PASS, power=int(seen))
    if "deterministic" in target.implementation.claim.properties:
        reason = "other bits than in an ordinary process, though it claims to be deterministic"
        return Finding(Status.FAIL, reason, 1.0, inputs)
    try:
        verdict = judge(target.op, bench.truth(target.op, sample.point), there)
    except Disagreement as problem:
        return Finding(Status.ERROR, str(problem), inputs=inputs)
    if verdict.problems:
        reason = f"right here and wrong in an ordinary process: {verdict.problems[0]}"
        return Finding(Status.FAIL, reason, 1.0, inputs)
    return Finding(Status.PASS, notes=("other bits in an ordinary process; both are right",))
