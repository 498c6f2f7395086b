"""Stream: work belongs to the caller's stream, and what a graph captured reads new contents.

A call is made on a stream of the caller behind a delay and behind the producer of its inputs,
which hold other values until then; a consumer on a third stream waits for the caller's alone.
Work that goes anywhere else reads the old inputs. A captured graph is replayed over new contents.
Only devices of which torch knows streams can be asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from trivet_conformance.calls.calling import (
    Outcome,
    ProviderFault,
    invoke,
    lay_out,
    on_cpu,
    results_of,
)
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point, supplied
from trivet_conformance.families.around import Around
from trivet_conformance.families.case import (
    Case,
    call,
    on_bases,
)
from trivet_conformance.judging.judge import judge
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.subject import Target

GRAPHS: Final = "CUDAGraph"
"""The class that a device module of torch has where it captures graphs."""

NAME: Final = "stream"
LEVEL: Final = "L2"
TOKENS: Final = 6
CYCLES: Final = 400_000_000
"""Clock cycles of the delay, about a fifth of a second; what is awaited is not measured."""

TRIES: Final = 3
"""Calls on another stream; on a busy machine a kernel may be loaded longer than the delay lasts."""

FACTORS: Final = 4096
"""Side of the squares whose products make the delay where no kernel waits for cycles."""


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """The order on streams, a captured graph, and a device that is not the current one."""
    if reason := unsupported(target.device.torch):
        finding = Finding(Status.NOT_SUPPORTED, reason)
        yield Case(f"{target.label}:streams", "", lambda: finding)
        return

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        one = _Streamed(target, bench, point, home)
        for run in (one.order, one.graph, one.device):
            yield Case(f"{target.label}:{run.__name__}:{point.text}", point.dtype_text, run)

    yield from on_bases(target, bench, TOKENS, 1, making)


def unsupported(device: torch.device) -> str:
    """Why a device has no streams that can be asked; empty where it has."""
    if device.type in ("cpu", "meta"):
        return f"torch knows no streams of {device.type}"
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return f"{device.type} is not the accelerator of this torch"
    try:
        torch.Stream(device=device)
    except RuntimeError as error:  # a backend without a pool of streams has the current one alone
        return f"{device.type} makes no streams: {str(error).partition(chr(10))[0]}"
    return ""


class _Streamed(Around):
    """One call on streams."""

    def order(self) -> Finding:
        """The call on the caller's stream, then the very same on another one: that must fail."""
        try:
            call(self.target, self._placed())  # whatever is set up at the first call
            problems = self._judged(self._on_streams(elsewhere=False))
            if problems:
                text = f"on the caller's stream: {problems}"
                return Finding(Status.FAIL, text, 1.0, self.point.to_json())
            if not self._stale():
                return Finding(Status.NOT_RUN, "no input can be late", inputs=self.point.to_json())
            refused = next(filter(None, map(self._elsewhere, range(TRIES))), "")
        except ProviderFault as fault:
            return Finding(Status.FAIL, str(fault), 1.0, self.point.to_json())
        if not refused:
            reason = "the check has no power: it accepts work on another stream"
            return Finding(Status.ERROR, reason, inputs=self.point.to_json())
        return Finding(Status.PASS, inputs=self.point.to_json(), power=1)

    def _elsewhere(self, _: int) -> str:
        """What is wrong with the call on a stream that waits for nobody."""
        return self._judged(self._on_streams(elsewhere=True))

    def graph(self) -> Finding:
        """The call in a graph that is captured over other contents and replayed over these."""
        inputs = self.point.to_json()
        if "graph_safe" not in self.target.implementation.claim.properties:
            reason = f"{self.target.provider} does not declare graph_safe"
            return Finding(Status.NOT_SUPPORTED, reason, inputs=inputs)
        if not hasattr(torch.get_device_module(self.target.device.torch), GRAPHS):
            reason = f"torch.{self.target.device.torch.type} captures no graphs"
            return Finding(Status.NOT_SUPPORTED, reason, inputs=inputs)
        try:
            placed, graph, raw = self._captured()
        except ProviderFault as fault:
            return Finding(Status.FAIL, f"while it is captured it {fault}", 1.0, inputs)
        found = {}
        for name in ("old", "new"):
            self._fill(placed, old=name == "old")
            graph.replay()
            torch.accelerator.synchronize()
            results = results_of(self.target.op, self.target.form, raw, placed.arguments)
            found[name] = self._judged(Outcome(placed, raw, on_cpu(results)))
        if found["new"]:
            text = f"a replay over new contents: {found['new']}"
            return Finding(Status.FAIL, text, 1.0, inputs)
        if self._stale() and not found["old"]:
            reason = "the check has no power: it accepts the replay over the old contents"
            return Finding(Status.ERROR, reason, inputs=inputs)
        return Finding(Status.PASS, inputs=inputs, power=int(bool(self._stale())))

    def device(self) -> Finding:
        """The call on the second device while the first is the current one."""
        home, inputs = self.target.device.torch, self.point.to_json()
        if torch.accelerator.device_count() < 2:
            return Finding(Status.NOT_RUN, f"there is one {home.type} only", inputs=inputs)
        now = torch.accelerator.current_device_index()
        other = torch.device(home.type, 1 - now if now < 2 else 0)
        given = self.target.adapted(
            self.bench.arguments(self.target.op, self.point), self.point, self.home
        )
        placed = lay_out(self.target.op, self.target.form, given, self.home, other)
        if placed is None:
            return Finding(Status.NOT_RUN, "no such call", inputs=inputs)
        try:
            outcome = call(self.target, placed)
        except ProviderFault as fault:
            return Finding(Status.FAIL, f"on {other} it {fault}", 1.0, inputs)
        problems = self._judged(outcome)
        if torch.accelerator.current_device_index() != now:
            problems = "it changed the current device; " + problems
        wrong = [r.device for r in outcome.results if r.device != other]
        if wrong:
            problems = f"a result is on {wrong[0]}, not {other}; " + problems
        if problems:
            return Finding(Status.FAIL, problems, 1.0, inputs)
        return Finding(Status.PASS, inputs=inputs)

    # --- the parts -------------------------------------------------------------------------

    def _placed(self) -> Placed:
        placed = self.target.lay_out(self.bench, self.point, self.home)
        if placed is None:
            msg = "no such call"
            raise ValueError(msg)
        return placed

    def _stale(self) -> list[str]:
        """Floating tensors that random numbers made: those that can hold other values first."""
        given = self.bench.arguments(self.target.op, self.point)
        fixed = supplied(self.target.op, self.point)
        other = self.bench.arguments(self.target.op, self.point, 1)
        return [
            n
            for n in self.target.op.tensors
            if isinstance(given[n], Tensor)
            and n not in fixed
            and given[n].dtype.is_floating_point
            and given[n].numel()
            and not torch.equal(given[n], other[n])
        ]

    def _fill(self, placed: Placed, *, old: bool) -> None:
        """Writes old or right contents into all that can change, by copies that do not wait."""
        given = self.bench.arguments(self.target.op, self.point)
        other = self.bench.arguments(self.target.op, self.point, 1)
        for name in {*self._stale(), *self.target.op.written("inplace")} - {"out"}:
            view = placed.arguments.get(name)
            if isinstance(view, Tensor):
                view.copy_((other if old else given)[name].reshape(view.shape))

    def _on_streams(self, *, elsewhere: bool) -> Outcome:
        """The call behind a delay and the copies of its inputs; its results as a consumer sees.

        Args:
            elsewhere: whether the call is made on a stream that waits for nobody.
        """
        device = self.target.device.torch
        placed, right = self._placed(), self._placed()
        self._fill(placed, old=True)
        own, third, reader = (torch.Stream(device=device) for _ in range(3))
        function = self.target.implementation.function
        delay = Delay(device)
        torch.accelerator.synchronize()
        with own:
            delay()
            for name in {*self._stale(), *self.target.op.written("inplace")} - {"out"}:
                view = placed.arguments.get(name)
                if isinstance(view, Tensor):
                    view.copy_(right.arguments[name])
            with third if elsewhere else contextlib.nullcontext():  # own is current
                outcome = invoke(self.target.op, self.target.form, function, placed)
            event = own.record_event()
        reader.wait_event(event)
        with reader:
            seen = [r.clone() for r in outcome.results]
        reader.synchronize()
        with reader:
            results = on_cpu(seen)
        torch.accelerator.synchronize()
        return replace(outcome, results=results)

    def _captured(self) -> tuple[Placed, Any, Any]:
        placed, function = self._placed(), self.target.implementation.function
        module = torch.get_device_module(self.target.device.torch)
        side = module.Stream()
        side.wait_stream(module.current_stream())
        with module.stream(side):
            for _ in range(2):
                self._fill(placed, old=True)
                invoke(self.target.op, self.target.form, function, placed)
        module.current_stream().wait_stream(side)
        torch.accelerator.synchronize()
        self._fill(placed, old=True)
        graph = getattr(module, GRAPHS)()
        try:
            with module.graph(graph):
                outcome = invoke(self.target.op, self.target.form, function, placed)
        except RuntimeError as error:  # what ends a capture is the provider's work
            raise ProviderFault(error) from error
        return placed, graph, outcome.raw

    def _judged(self, outcome: Outcome) -> str:
        truth = self.bench.truth(self.target.op, self.point)
        verdict = judge(self.target.op, truth, on_cpu(outcome.results))
        return "; ".join(verdict.problems)


class Delay:
    """Work for the current stream that ends long after the host has gone on."""

    def __init__(self, device: torch.device) -> None:
        self.sleep = getattr(torch.get_device_module(device), "_sleep", None)
        self.square = torch.ones(
            1 if self.sleep else FACTORS, 1 if self.sleep else FACTORS, device=device
        )

    def __call__(self) -> None:
        """Puts the work on the current stream."""
        if self.sleep is not None:
            self.sleep(CYCLES)
            return
        for _ in range(20):
            torch.mm(self.square, self.square)
