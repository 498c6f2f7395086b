"""Calls around one point: equal calls must agree, and the check shows itself that it would see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivet.judging.statistics import same_bits
from trivet_conformance.calls.calling import ProviderFault, compute
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

Named = Sequence[tuple[str, list[Any]]]
"""Results on the CPU, each with what was done."""


@dataclass(frozen=True)
class Around:
    """One implementation at one point.

    Args:
        target: the implementation.
        bench: inputs and truths.
        point: what is judged.
        home: its layout.
    """

    target: Target
    bench: Bench
    point: Point
    home: Layout

    def placed(self, draw: int = 0) -> Placed | None:
        """The call on the device; None where there is no such call."""
        return self.target.lay_out(self.bench, self.point, self.home, draw=draw)

    def no_call(self) -> Finding:
        """There is no such call."""
        return Finding(Status.NOT_RUN, "no such call", inputs=self.point.to_json())

    def guarded(self, run: Callable[[], Finding]) -> Finding:
        """Runs a check; a provider that raises fails, a declaration that cannot judge is wrong."""
        inputs = self.point.to_json()
        try:
            return run()
        except ProviderFault as fault:
            return Finding(Status.FAIL, str(fault), 1.0, inputs)
        except Disagreement as problem:
            return Finding(Status.ERROR, str(problem), inputs=inputs)

    def settled(self, found: Named, notes: tuple[str, ...] = ()) -> Finding:
        """Judges equal calls by value, and by their bits where the claim is ``deterministic``.

        It shows itself a flipped bit and results of other inputs, and must refuse both.
        """
        op, truth = self.target.op, self.bench.truth(self.target.op, self.point)
        bitwise = "deterministic" in self.target.implementation.claim.properties
        inputs, (first, right) = self.point.to_json(), found[0]

        def wrong(results: list[Any]) -> str:
            if problems := judge(op, truth, results).problems:
                return "; ".join(problems)
            differ = bitwise and not equal(results, right)
            return "other bits, though declared deterministic" if differ else ""

        for name, results in found:
            if text := wrong(results):
                unlike = "" if results is right else f", not as {first}"
                return Finding(Status.FAIL, f"{name}{unlike}: {text}", 1.0, inputs, notes)
        shown = list(self._wrong_results(right, bitwise=bitwise))
        accepted = [name for name, results in shown if not wrong(results)]
        if accepted:
            reason = f"the check has no power: it accepts {', '.join(accepted)}"
            return Finding(Status.ERROR, reason, inputs=inputs, notes=notes)
        return settle(op, truth, judge(op, truth, found[-1][1]), notes)

    def _wrong_results(self, right: list[Any], *, bitwise: bool) -> Iterator[tuple[str, list[Any]]]:
        """Right results with one flipped bit, and those of the other draw where they differ."""
        if bitwise and right and right[0].numel():
            yield "a flipped bit", [flipped(right[0]), *right[1:]]
        op, truth = self.target.op, self.bench.truth(self.target.op, self.point)
        stale = compute(op, op.reference, self.bench.arguments(op, self.point, 1))
        if not equal(stale, truth.native):
            yield "results of other inputs", stale


def equal(results: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether results are the same bit by bit; a NaN equals every other NaN."""
    return len(results) == len(others) and all(map(_alike, results, others))


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is None and other is None
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and bool(same_bits(one, other, any_nan=True).all())


def flipped(t: Tensor) -> Tensor:
    """A copy with the lowest bit of one element flipped."""
    made = t.contiguous().clone()
    made.view(-1)[:1].view(torch.uint8)[0] ^= 1
    return made
