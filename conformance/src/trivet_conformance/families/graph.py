"""Graph: what declares ``graph_safe`` is captured, and replayed over new contents.

It is captured as an engine captures it on that device: by the capture that the device's plugin
brings, else by core's, which records calls of torch operators. Both refuse what reads a number on
the host. The replay is judged by value; over the contents of the capture it must be refused, which
shows that the judgement sees a result that was kept. Who does not declare it is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.capture.emulated import Emulated
from trivet.capture.session import Session
from trivet.contracts import Execution
from trivet.errors import CaptureUnsafe
from trivet_conformance.calls.calling import ProviderFault, invoke, on_cpu, results_of
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point, supplied
from trivet_conformance.families.around import Around
from trivet_conformance.families.case import Case, call, on_bases
from trivet_conformance.judging.judge import judge, settle
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

NAME: Final = "graph"
LEVEL: Final = "L2"
TOKENS: Final = 6


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """One captured call of every claimed dtype."""
    if reason := _not_asked(target):
        finding = Finding(Status.NOT_SUPPORTED, reason)
        yield Case(f"{target.label}:capture", "", lambda: finding)
        return

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        one = _Captured(target, bench, point, home)
        name = f"{target.label}:replay:{point.text}"
        yield Case(name, point.dtype_text, partial(one.guarded, one.replay))

    yield from on_bases(target, bench, TOKENS, 1, making)


def _not_asked(target: Target) -> str:
    """Why nothing is captured; empty where something is."""
    if "graph_safe" not in target.implementation.claim.properties:
        return f"{target.provider} does not declare graph_safe"
    interpreted = target.device.info.execution == Execution.INTERPRETED
    if interpreted and isinstance(target.device.capture.capturer, Emulated):
        return "interpreted kernels are no torch operators, which is all that core's capture sees"
    return ""


class _Captured(Around):
    """One captured call."""

    def replay(self) -> Finding:
        """The call, captured over other contents and replayed over these."""
        placed = self.placed()
        if placed is None:
            return self.no_call()
        op, inputs, stale = self.target.op, self.point.to_json(), self._stale()
        with torch.no_grad():
            self._fill(placed, stale, draw=1)
            call(self.target, placed)  # whatever is set up at a first call
            self._fill(placed, [], draw=1, written=True)
            capturer = self.target.device.capture.capturer
            session = Session(capturer, capturer.pool())
            try:
                raw = self._captured(session, placed)
                found = {}
                for draw in (1, 0):
                    self._fill(placed, [] if draw else stale, draw=draw, written=True)
                    session.replay()
                    results = results_of(op, self.target.form, raw, placed.arguments)
                    found[draw] = judge(op, self.bench.truth(op, self.point), on_cpu(results))
            except CaptureUnsafe as error:
                return Finding(Status.FAIL, f"declares graph_safe: {error.what}", 1.0, inputs)
            finally:
                session.release()
        if problems := "; ".join(found[0].problems):
            return Finding(Status.FAIL, f"a replay over new contents: {problems}", 1.0, inputs)
        if stale and not found[1].problems:
            reason = "the check has no power: it accepts the replay over the old contents"
            return Finding(Status.ERROR, reason, inputs=inputs)
        return settle(op, self.bench.truth(op, self.point), found[0])

    def _captured(self, session: Session, placed: Placed) -> Any:
        """What the call returned while it was captured.

        Raises:
            CaptureUnsafe: it cannot be replayed.
            ProviderFault: it raised something else.
        """
        op, form, function = self.target.op, self.target.form, self.target.implementation.function
        who = f"{op.name} ({self.target.provider})"

        def work() -> Any:
            run = partial(invoke, op, form, function, placed)
            return session.called(who, op, form, lambda: run().raw, placed.arguments)

        try:
            return session.record(work)
        except ProviderFault as fault:
            if isinstance(fault.__cause__, CaptureUnsafe):
                raise fault.__cause__ from None
            raise

    def _stale(self) -> list[str]:
        """Floating tensors that random numbers made: those that can hold other values first."""
        op = self.target.op
        given, other = (self.bench.arguments(op, self.point, draw) for draw in (0, 1))
        fixed = supplied(op, self.point)
        return [
            name
            for name in op.tensors
            if isinstance(given[name], Tensor)
            and name not in fixed
            and given[name].dtype.is_floating_point
            and not torch.equal(given[name], other[name])
        ]

    def _fill(self, placed: Placed, names: list[str], *, draw: int, written: bool = False) -> None:
        """Writes the contents of a draw; what the call itself writes, where it has written."""
        given = self.bench.arguments(self.target.op, self.point, draw)
        also = {*self.target.op.written("inplace")} - {"out"} if written else set()
        for name in {*names, *also}:
            view = placed.arguments.get(name)
            if isinstance(view, Tensor) and isinstance(given[name], Tensor):
                view.copy_(given[name].reshape(view.shape))
