"""Captured steps by size: static inputs, padding, replays, and what they cost."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor

from trivet.binding.plan import Plan
from trivet.capture.session import Session, capturing
from trivet.capture.sites import CapturedStep
from trivet.capture.tensors import mapped
from trivet.contracts.capture import Capturer
from trivet.errors import DomainError, OrderError
from trivet.memory import DeviceMemory, Token

TAG: Final = "graph"
"""The tag of the ledger under which graphs and their static inputs stand."""

At = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True)
class Input:
    """A static input: one row for each of a bucket's rows.

    Args:
        dtype: of its numbers.
        shape: of one row.
        padding: what a row holds that stands for no request.
    """

    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    padding: float = 0


@dataclass(frozen=True)
class BucketReport:
    """What one size costs.

    Args:
        size: its rows.
        seconds: that warm-up and capture took.
        nbytes: of its graphs; the static inputs, which all sizes share, are not among them.
        graphs: segments.
        boundaries: calls between them that run eagerly.
        replays: how often it was used.
    """

    size: int
    seconds: float
    nbytes: int
    graphs: int
    boundaries: int
    replays: int


@dataclass
class _Bucket:
    """One size that is captured."""

    size: int
    inputs: dict[str, Tensor]
    session: Session
    outputs: Any
    seconds: float
    token: Token
    counts: Counter[tuple[str, str]]
    replays: int = 0


class Buckets:
    """A step of a plan, captured for some numbers of rows; made by ``dev.capture.buckets``.

    Call it with the plan and the inputs of any number of rows: they are padded up to the next
    size, and results are cut to the rows. More rows than the largest size run eagerly and are
    counted in ``eager``. Results are valid until the next call.
    """

    def __init__(
        self,
        plan: Plan,
        step: Callable[..., Any],
        *,
        inputs: Mapping[str, Input],
        sizes: Iterable[int],
        at: At,
        capturer: Capturer,
        memory: DeviceMemory,
    ) -> None:
        self.sizes = tuple(sorted({*sizes}))
        if not inputs or not self.sizes or self.sizes[0] < 1:
            what = f"{len(inputs)} inputs and the sizes {list(self.sizes)}"
            raise OrderError(what, fix="name at least one input, and sizes of 1 row and more")
        self.plan, self.digest, self.eager = plan, plan.digest, 0
        self._step, self._at, self._specs = step, at, dict(inputs)
        self._capturer, self._memory = capturer, memory
        self._busy, self._process = threading.Lock(), os.getpid()
        self._found: list[_Bucket] = []
        self._static: dict[str, Tensor] = {}
        self._filled = 0
        self.check(plan)
        if capturing():
            raise OrderError("a capture is open", fix="capture before the step that is captured")
        try:
            self._capture()
        except BaseException:
            self.release()
            raise

    def __call__(self, plan: Plan, /, **inputs: Tensor) -> Any:
        """The step over some rows, by a replay where a size holds them.

        Args:
            plan: the plan that the caller works under.
            inputs: ``[rows, *shape]`` of each input, on any device.

        Raises:
            OrderError: another plan, thread or process than that of the capture, or released.
            AddressMoved: a tensor that the graphs read or write lies elsewhere now, or has ended.
            DomainError: the inputs are not those that were named.
        """
        self._admit(plan)
        if not self._busy.acquire(blocking=False):
            what = "these graphs are replayed by another thread at this moment"
            raise OrderError(what, fix="replay from one thread at a time: inputs are shared")
        try:
            rows = self._rows(inputs)
            with torch.inference_mode():
                bucket = next((b for b in self._found if 0 < rows <= b.size), None)
                if bucket is None:
                    return self._eagerly(rows, inputs)
                bucket.session.addresses.check()
                self._fill(rows, inputs)
                bucket.session.replay()
                bucket.replays += 1
            size = bucket.size
            if rows == size:
                return bucket.outputs
            return mapped(bucket.outputs, lambda t: _cut(t, size, rows))
        finally:
            self._busy.release()

    def check(self, plan: Plan) -> None:
        """Whether these graphs are those of a plan, and nothing changed since it was made.

        It reads settings and metadata, which takes longer than a step: for between requests.

        Raises:
            OrderError: says what differs.
        """
        self._same(plan)
        if changed := plan.stale():
            what = "".join(f"\n    {line}" for line in changed)
            fix = "make the plan anew, prepare the weights with it, and capture again"
            raise OrderError(f"the plan of these graphs is stale:{what}", fix=fix)

    def report(self) -> list[BucketReport]:
        """What each size costs, in order of size."""
        return [
            BucketReport(
                b.size, b.seconds, b.session.nbytes, len(b.session.graphs), b.session.boundaries,
                b.replays,
            )
            for b in self._found
        ]  # fmt: skip

    def counts(self) -> dict[tuple[str, str], int]:
        """Calls by (site, provider) that the replays stand for."""
        total: Counter[tuple[str, str]] = Counter()
        for bucket in self._found:
            for key, calls in bucket.counts.items():
                total[key] += calls * bucket.replays
        return {key: calls for key, calls in total.items() if calls}

    def release(self) -> None:
        """Gives graphs and static inputs back; a second call does nothing."""
        for bucket in self._found:
            bucket.session.release()
            bucket.token.release()
        self._found, self._static, self._process = [], {}, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    # --- the capture -----------------------------------------------------------------------

    def _capture(self) -> None:
        largest, pool = self.sizes[-1], self._capturer.pool()
        for name, spec in self._specs.items():
            buffer = self._memory.empty((largest, *spec.shape), spec.dtype, tag=TAG)
            self._static[name] = buffer.fill_(spec.padding)
        for size in reversed(self.sizes):  # what smaller ones need then fits the shared memory
            self._found.insert(0, self._captured(size, pool))

    def _captured(self, size: int, pool: object) -> _Bucket:
        """One size, over rows of padding: nothing of an engine's state is touched."""
        start = time.perf_counter()
        session, counts = Session(self._capturer, pool), Counter[tuple[str, str]]()
        inputs = {name: buffer[:size] for name, buffer in self._static.items()}
        session.watch.made(inputs)
        op = self.plan.at(**self._at(size))
        watched = CapturedStep(self.plan, op, session, counts)
        with torch.inference_mode():
            self._step(op, **inputs)  # whatever is set up at a first call
            outputs = session.record(lambda: self._step(watched, **inputs))
        try:
            token = self._memory.account(session.nbytes, TAG)
        except BaseException:
            session.release()
            raise
        seconds = time.perf_counter() - start
        return _Bucket(size, inputs, session, outputs, seconds, token, counts)

    # --- a call ----------------------------------------------------------------------------

    def _admit(self, plan: Plan) -> None:
        if self._process != os.getpid():
            if not self._process:
                raise OrderError("these graphs were released", fix="capture again")
            what = "these graphs were captured in another process, which this one was forked from"
            raise OrderError(what, fix="start the process first, then capture in it")
        if plan is not self.plan:
            self._same(plan)
        if capturing():
            raise OrderError("graphs are replayed in a capture", fix="call the step itself there")

    def _same(self, plan: Plan) -> None:
        if plan.digest != self.digest:
            what = f"the graphs are of the plan {self.digest}, not of {plan.digest}"
            raise OrderError(what, fix="capture under the plan that is used")

    def _rows(self, inputs: Mapping[str, Tensor]) -> int:
        if inputs.keys() != self._specs.keys():
            what = f"inputs are {sorted(inputs)}, the capture has {sorted(self._specs)}"
            raise DomainError(what, fix="pass each input of the capture by its name")
        rows = -1
        for name, spec in self._specs.items():
            given = inputs[name]
            rows = given.shape[0] if rows < 0 else rows
            if given.shape != (rows, *spec.shape) or given.dtype is not spec.dtype:
                wanted = f"{spec.dtype} {[rows, *spec.shape]}"
                what = f"input {name!r} is {given.dtype} {list(given.shape)}, not {wanted}"
                raise DomainError(what, fix="pass the same rows of each, in the declared dtype")
        return rows

    def _fill(self, rows: int, inputs: Mapping[str, Tensor]) -> None:
        """Copies the rows, and makes rows of padding of those that an earlier call has filled."""
        for name, buffer in self._static.items():
            buffer[:rows].copy_(inputs[name], non_blocking=True)
            if rows < self._filled:
                buffer[rows : self._filled].fill_(self._specs[name].padding)
        self._filled = rows

    def _eagerly(self, rows: int, inputs: Mapping[str, Tensor]) -> Any:
        self.eager += 1
        home = self._memory.device
        here = {name: tensor.to(home) for name, tensor in inputs.items()}
        return self._step(self.plan.at(**self._at(rows)), **here)


def _cut(tensor: Any, size: int, rows: int) -> Any:
    """The first rows of a result that has one for each row of its bucket."""
    by_row = isinstance(tensor, Tensor) and tensor.dim() and tensor.shape[0] == size
    return tensor[:rows] if by_row else tensor
