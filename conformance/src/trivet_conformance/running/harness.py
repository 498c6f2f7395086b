"""Checks around the calls: plain results, memory that grows, and plugins that detect the kit."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trivet_conformance.calls.calling import ProviderFault, invoke, on_cpu, results_of
from trivet_conformance.calls.fresh import in_host_memory
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.case import base_points, claimed
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.statistics import same_bits
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.running.run import Place, grouped, place_of
from trivet_conformance.running.wire import Job
from trivet_conformance.subject.subject import Subject, Target

Check = tuple[Place, Callable[[], Finding]]

PLAIN_SECONDS: Final = 50.0
"""Time of a call in the plain process, its interpreter's start included."""

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


def harness_checks(subject: Subject, bench: Bench, job: Job) -> Iterator[Check]:
    """The checks of every implementation; those that need another process come last."""
    samples = []
    for target in grouped(subject.targets, bench, keep=True):
        try:
            sample = _sample(target, bench)
        except ProviderFault:
            sample = None  # what families tell at length
        if sample is None:
            continue
        samples.append(sample)
        yield _place(target, "result"), partial(_plain_result, sample, bench)
        yield _place(target, "memory"), partial(_memory, sample, bench)
    folder = Path(job.folder)
    plain = Plain(subject.device.info.kind)
    for i, sample in enumerate(samples):
        check = partial(_detection, sample, bench, plain, folder / f"call{i}")
        yield _place(sample.target, "detection"), check


def _place(target: Target, name: str) -> Place:
    return place_of(target, "harness", f"{target.label}:{name}")


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


def _detection(sample: Sample, bench: Bench, plain: Plain, stem: Path) -> Finding:
    """A call in a process that only imports trivet gives what the same call gives here."""
    target, op = sample.target, sample.target.op
    inputs = sample.point.to_json()
    placed = _placed(sample, bench)
    if target.implementation.claim.opaque:
        return Finding(Status.NOT_RUN, "its packs cannot be carried to another process")
    given = stem.with_suffix(".given")
    positional = [placed.arguments[name] for name in op.signature.names()]
    keyword = {"out": placed.arguments["out"]} if target.form == "out" else {}
    torch.save(in_host_memory({"positional": positional, "keyword": keyword}), given)
    try:
        here = invoke(op, target.form, target.implementation.function, placed)
    except ProviderFault as fault:
        return Finding(Status.FAIL, str(fault), 1.0, inputs)
    answer = stem.with_suffix(".answer")
    if problem := plain.call(target, given, answer):
        return Finding(Status.FAIL, f"in an ordinary process {problem}", 1.0, inputs)
    made = torch.load(answer, weights_only=False)
    names = op.signature.names()
    after = dict(zip(names, made["given"]["positional"], strict=True)) | made["given"]["keyword"]
    there = on_cpu(results_of(op, target.form, made["returned"], after))
    return _compare(sample, bench, on_cpu(here.results), there)


class Plain:
    """A process that is not under test; it starts when it is first needed.

    Args:
        kind: the device.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process: subprocess.Popen[str] | None = None

    def call(self, target: Target, given: Path, answer: Path) -> str:
        """Makes a call there; says what went wrong, or nothing."""
        row = {
            "provider": target.provider,
            "operator": target.op.name,
            "form": target.form,
            "given": str(given),
            "answer": str(answer),
        }
        process = self._started()
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()
        end = time.monotonic() + PLAIN_SECONDS
        while not answer.exists():
            if (code := process.poll()) is not None and not answer.exists():
                self._process = None
                return f"the process ends with status {code}"
            if time.monotonic() > end:
                process.kill()
                self._process = None
                return f"it does not end within {PLAIN_SECONDS:g} s"
            time.sleep(0.005)
        return ""

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            program = Path(__file__).with_name("plain.py").read_text(encoding="utf-8")
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
            first = {"paths": sys.path, "kind": self._kind}
            self._process.stdin.write(json.dumps(first) + "\n")
        return self._process


def _compare(sample: Sample, bench: Bench, here: list[Any], there: list[Any]) -> Finding:
    target, inputs = sample.target, sample.point.to_json()
    same = len(here) == len(there) and all(map(_equal, here, there))
    if same:
        return Finding(Status.PASS, power=1 if _refuses(here) else 0)
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


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is None and other is None
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and bool(same_bits(one, other, any_nan=True).all())


def _refuses(results: list[Any]) -> bool:
    """Whether results that differ in one element are told apart."""
    for result in results:
        if isinstance(result, Tensor) and result.numel():
            wrong = result.clone()
            wrong.view(-1)[0] = wrong.view(-1)[0] + 1 if wrong.view(-1)[0] == 0 else 0
            return not _equal(result, wrong)
    return False
