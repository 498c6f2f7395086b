"""A model of an allocator, and random sequences of calls that must agree with it.

The model knows what is live, what is suspended and what is written where; it does not know how
much fits, so that a refusal for want of room is right at any time if it changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from trivet.contracts.memory import Allocator, Reclaimer, Trimmer
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory.exhaustion import IMPOSSIBLE
from trivet_conformance.memory.held import TAG, Held
from trivet_conformance.memory.judged import Wrong, asked, refused
from trivet_conformance.subject.leg import Leg

_SIZES = st.sampled_from([0, 1, 64, 1000, 4096, 9000, 65_536])
_INDEX = st.integers(0, 1 << 16)


def model(leg: Leg, bench: Bench) -> str:
    """Random sequences of allocate, free, write, suspend, resume and trim against the model."""
    found: list[tuple[list[str], str]] = []
    kind = type("Sequence", (_Sequence,), {"leg": leg, "found": found})
    chosen = settings(
        max_examples=4 if bench.quick else 40,
        stateful_step_count=20 if bench.quick else 40,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shrinking repeats a broken state too often
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(seed(bench.seed)(kind), settings=chosen)
    except (Wrong, HypothesisException):  # the latter where a sequence fails only sometimes
        if not found:
            raise
    if found:
        steps, problem = min(found, key=lambda one: len(one[0]))
        msg = f"{problem}; after {', '.join(steps)}"
        raise Wrong(msg)
    return f"{chosen.max_examples} sequences of {chosen.stateful_step_count} calls"


class _Sequence(RuleBasedStateMachine):
    leg: ClassVar[Any]
    found: ClassVar[list[tuple[list[str], str]]]

    def __init__(self) -> None:
        super().__init__()
        self.held = Held(self.leg)
        self.steps: list[str] = []
        self.addresses: dict[int, int] = {}
        self.suspended: set[int] = set()
        self.reclaims = self.leg.brings(Reclaimer) and self.leg.brings(Allocator)
        self.trims = self.leg.brings(Trimmer)

    def _some(self, index: int, keys: list[int]) -> int:
        return keys[index % len(keys)]

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        self.steps.append(text)
        try:
            yield
            self.judge()
        except Wrong as problem:
            self.found.append((self.steps, str(problem)))
            raise

    def judge(self) -> None:
        self.held.verify()
        if self.held.traits.stable_address:
            for key in self.held:
                if self.held.tensor(key).data_ptr() != self.addresses[key]:
                    msg = "the address of a buffer changes, though the traits say stable_address"
                    raise Wrong(msg)

    @rule(nbytes=_SIZES)
    def allocate(self, nbytes: int) -> None:
        with self.step(f"allocate({nbytes})"), contextlib.suppress(torch.OutOfMemoryError):
            key = self.held.take(nbytes)
            self.addresses[key] = self.held.tensor(key).data_ptr()

    @rule(nbytes=st.sampled_from(IMPOSSIBLE))
    def cannot_allocate(self, nbytes: int) -> None:
        what, allocate = f"allocate({nbytes})", self.held.allocator.allocate
        with self.step(what):
            refused(torch.OutOfMemoryError, what, allocate, nbytes, tag=TAG)

    @precondition(lambda self: len(self.held) > 0)
    @rule(index=_INDEX)
    def free(self, index: int) -> None:
        key = self._some(index, list(self.held))
        with self.step(f"deallocate(buffer {key})"):
            self.held.give(key)
            self.suspended.discard(key)

    @precondition(lambda self: len(self.held) > len(self.suspended))
    @rule(index=_INDEX)
    def write(self, index: int) -> None:
        key = self._some(index, sorted(set(self.held) - self.suspended))
        with self.step(f"write(buffer {key})"):
            self.held.write(key)

    @precondition(lambda self: self.reclaims and len(self.held) > len(self.suspended))
    @rule(index=_INDEX)
    def suspend(self, index: int) -> None:
        key = self._some(index, sorted(set(self.held) - self.suspended))
        with self.step(f"suspend(buffer {key})"):
            self.held.lost(key)
            asked(self.leg.provided.suspend, self.held.tensor(key))
            self.suspended.add(key)

    @precondition(lambda self: self.suspended)
    @rule(index=_INDEX)
    def resume(self, index: int) -> None:
        key = self._some(index, sorted(self.suspended))
        with self.step(f"resume(buffer {key})"), contextlib.suppress(torch.OutOfMemoryError):
            asked(self.leg.provided.resume, self.held.tensor(key))
            self.suspended.discard(key)
            self.held.write(key)

    @precondition(lambda self: self.trims)
    @rule(nbytes=st.sampled_from([0, 1, 4096]))
    def trim(self, nbytes: int) -> None:
        with self.step(f"trim({nbytes})"):
            asked(self.leg.provided.trim, nbytes)

    def teardown(self) -> None:
        self.held.drop_all()
