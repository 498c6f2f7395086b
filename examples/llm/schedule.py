"""Continuous batching: which tokens of which requests the next step computes.

Each step first takes one token of every request that is decoding, then fills what is left of its
token budget with pieces of prompts. A request is admitted, first come first served, when the batch
has a place and the pool has the blocks for its prompt and a margin. What it generates takes blocks
step by step. Where the pool is short, the youngest request that runs is put aside: it goes back to
the head of the queue, and goes on later with the tokens that it has. So all that runs is older than
all that waits; the oldest always has its blocks, and everything comes to its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, Protocol

from llm.cache import Cache, Store, Usage
from llm.errors import PromptTooLong, RequestError
from llm.sampling import GREEDY, Sampling
from trivet.errors import OutOfMemory
from trivet.memory import KvBlocks

Finish = Literal["", "stop", "length", "cache", "context", "cancelled"]


class Model(Protocol):
    """What the scheduler needs of a model."""

    def step(self, pieces: list[Piece], /) -> list[int]:
        """The next token of each piece whose ``samples`` is true, in order."""


@dataclass(eq=False)
class Request:
    """One prompt and what became of it; ``finish`` is empty while it waits or runs.

    Attributes:
        prompt: The tokens that are given.
        limit: Most tokens that are generated, and ``at_limit`` why it ends there.
        at_limit: See ``limit``.
        sampling: How tokens are chosen.
        output: What was generated so far.
        blocks: Of the cache, in order, while it runs.
        cached: Tokens whose keys and values are there, or were saved.
        finish: Why it ended.
        keys: Of its full blocks, as far as they were needed.
        published: How many of its blocks others can find, or were found.
        saved: What a store keeps of it while it is put aside.
        preempted: How often it was put aside.
    """

    prompt: list[int]
    limit: int
    at_limit: Finish
    sampling: Sampling = GREEDY
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    finish: Finish = ""
    keys: list[bytes] = field(default_factory=list)
    published: int = 0
    saved: Any = None
    preempted: int = 0

    @property
    def missing(self) -> int:
        """How many tokens have no keys and values in the cache yet."""
        return len(self.prompt) + len(self.output) - self.cached


@dataclass(frozen=True)
class Piece:
    """A run of tokens of one request; ``samples`` when a new token follows its last one."""

    request: Request
    start: int
    ids: list[int]
    samples: bool


class Scheduler:
    """Holds the queue and the running batch; owns every block that it has taken.

    Args:
        pool: The blocks of the KV cache.
        max_batch: Most requests in a step.
        budget: Most tokens in a step.
        context: Most tokens of a sequence.
        eos: Tokens that end an answer.
        salt: What contents of blocks depend on besides the tokens; None shares none of them.
        store: Where blocks go of requests that are put aside; None computes them again.
    """

    def __init__(  # one keyword a limit
        self,
        pool: KvBlocks,
        *,
        max_batch: int,
        budget: int,
        context: int,
        eos: frozenset[int],
        salt: bytes | None = None,
        store: Store | None = None,
    ) -> None:
        if max_batch < 1 or budget < max_batch:
            what = f"a budget of {budget} tokens a step cannot serve a batch of {max_batch}"
            raise RequestError(what, fix="use a batch of at least 1 and a budget no less than it")
        self._cache, self._slots = Cache(pool, salt, store), pool.num_free * pool.block_size
        self._max_batch, self._budget, self._context, self._eos = max_batch, budget, context, eos
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # the oldest first
        self._entered: list[Request] = []  # by the step that is not booked yet

    @property
    def usage(self) -> Usage:
        """What the cache saved and cost so far."""
        return self._cache.usage

    @property
    def num_waiting(self) -> int:
        """Requests that are not admitted yet, or were put aside."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that are admitted and not finished."""
        return len(self._running)

    def refuse_prompt(self, prompt: list[int]) -> None:
        """Refuses what can never run; reads constants alone, so any thread may ask.

        Raises:
            RequestError: The prompt is empty.
            PromptTooLong: It does not fit the cache or the model.
        """
        if not prompt:
            raise RequestError("a request needs a prompt and at least one token to generate")
        if len(prompt) > self._slots:
            what = f"the prompt has {len(prompt)} tokens, the KV cache holds {self._slots}"
            raise PromptTooLong(what, fix="shorten it, or raise --cache-tokens")
        if len(prompt) >= self._context:
            what = f"the prompt has {len(prompt)} tokens, the model's context is {self._context}"
            raise PromptTooLong(what, fix="shorten it")

    def submit(self, prompt: list[int], max_tokens: int, sampling: Sampling = GREEDY) -> Request:
        """Queues a prompt; it ends after ``max_tokens``, or earlier where the cache is too small.

        Raises:
            RequestError: The prompt is empty, or does not fit the cache or the model.
        """
        self.refuse_prompt(prompt)
        if max_tokens < 1:
            raise RequestError("a request needs a prompt and at least one token to generate")
        limits: dict[Finish, int] = {
            "length": max_tokens,
            "cache": self._slots - len(prompt) + 1,  # the last token is never written
            "context": self._context - len(prompt),
        }
        at_limit = min(limits, key=limits.__getitem__)
        request = Request(prompt, limits[at_limit], at_limit, sampling)
        self._waiting.append(request)
        return request

    @contextmanager
    def attempt(self) -> Iterator[list[Piece]]:
        """The next step, to be computed inside; when that fails, all is as it was before it.

        What was put aside stays so. The same step can be tried again. No pieces: all is finished.

        Raises:
            OutOfMemory: One request alone does not fit, as others hold blocks of the pool.
        """
        try:
            with self._cache.attempt():
                yield self.next_batch()
        except BaseException:
            for request in reversed(self._entered):
                self._running.remove(request)
                self._waiting.appendleft(request)
                self._cache.undo(request)
            self._entered = []
            for request in self._running:
                self._cache.undo(request)
            raise

    def next_batch(self) -> list[Piece]:
        """Makes room, shares the budget out, and admits what fits; see ``attempt``."""
        self._entered = []
        was_short = self._make_room()
        room, pieces = self._budget, list[Piece]()
        decoding_first = sorted(self._running, key=lambda r: r.missing > 1)
        # One that was put aside may fit again, as others have its beginning: not in the same step,
        # which would have to tell its blocks of before from those of now when it fails.
        for request in chain(decoding_first, () if was_short else self._admitted(pieces)):
            take, start = min(room, request.missing), request.cached
            ids = (request.prompt + request.output)[start : start + take]
            pieces.append(Piece(request, start, ids, samples=take == request.missing))
            room -= take
            if not room:
                break
        return pieces

    def commit(self, pieces: list[Piece], tokens: list[int]) -> list[tuple[Request, int]]:
        """Books what a step computed, and frees the blocks of what ended."""
        for request in self._entered:
            self._cache.entered(request)
        self._entered = []
        for piece in pieces:
            piece.request.cached += len(piece.ids)
            self._cache.publish(piece.request)
        sampled = [piece.request for piece in pieces if piece.samples]
        events = list(zip(sampled, tokens, strict=True))
        for request, token in events:
            request.output.append(token)
            if token in self._eos:
                request.finish = "stop"
            elif len(request.output) == request.limit:
                request.finish = request.at_limit
            if request.finish:
                self._release(request)
        return events

    def end(self, request: Request, finish: Finish) -> None:
        """Ends a request that waits or runs, between two steps; its blocks go back at once."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._cache.leave(request)
        elif request in self._running:
            self._release(request)
        request.finish = finish

    def cancel(self, request: Request) -> None:
        """Ends a request that nobody waits for any more; one that is finished stays as it is."""
        if not request.finish:
            self.end(request, "cancelled")

    def cancel_all(self) -> None:
        """Drops what waits and frees what runs."""
        for request in [*self._waiting, *self._running]:
            self.cancel(request)

    def _make_room(self) -> bool:
        """Takes blocks for the next tokens, the oldest first; whether some were put aside for it.

        Raises:
            OutOfMemory: The last one that runs does not fit.
        """
        was_short, served = False, 0
        while served < len(self._running):
            try:
                self._cache.grow(self._running[served])
                served += 1
            except OutOfMemory:
                if len(self._running) == 1:
                    raise
                youngest = self._running[-1]
                self._cache.put_aside(youngest)
                self._waiting.appendleft(self._running.pop())
                was_short = True
        return was_short

    def _admitted(self, pieces: list[Piece]) -> Iterator[Request]:
        """Admits what fits beside the pieces of this step; each gets its own before the next."""
        while self._waiting and len(self._running) < self._max_batch:
            request = self._waiting[0]
            growing = sum(map(self._cache.grows, [request, *self._running]))
            spare = growing if self._running else None
            computing = {key for piece in pieces for key in self._cache.completes(piece)}
            if not self._cache.enter(request, spare, computing):
                return
            self._running.append(self._waiting.popleft())
            self._entered.append(request)
            yield request

    def _release(self, request: Request) -> None:
        self._running.remove(request)
        self._cache.leave(request)


def generate(model: Model, scheduler: Scheduler) -> Iterator[tuple[Request, int]]:
    """Runs steps until every request is finished, and yields each new token as it comes.

    However the iteration ends (also by an exception or ``close``), all blocks go back.
    """
    try:
        while True:
            with scheduler.attempt() as pieces:
                tokens = model.step(pieces) if pieces else []
            if not pieces:
                return
            yield from scheduler.commit(pieces, tokens)
    finally:
        scheduler.cancel_all()
