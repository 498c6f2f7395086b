"""Continuous batching: which tokens of which requests the next step computes.

Each step first takes one token of every request that is decoding, then fills what is left of its
token budget with pieces of prompts. A request is admitted, first come first served, when the batch
has a place and the pool has the blocks for its prompt *and* all that it may generate; so nothing
that runs is ever stopped for want of memory, and everything that waits comes to its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from llm.errors import PromptTooLong, RequestError
from llm.sampling import GREEDY, Sampling
from trivet.memory import KvBlocks

Finish = Literal["", "stop", "length", "cache", "context", "cancelled"]


class Model(Protocol):
    """What the scheduler needs of a model."""

    def step(self, pieces: list[Piece], /) -> list[int]:
        """The next token of each piece whose ``samples`` is true, in order."""


@dataclass(eq=False)
class Request:
    """One prompt and what became of it; ``finish`` is empty while it waits or runs."""

    prompt: list[int]
    limit: int
    at_limit: Finish
    sampling: Sampling = GREEDY
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    finish: Finish = ""

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
    """Holds the queue and the running batch; owns every block that it has taken."""

    def __init__(  # one keyword a limit
        self,
        pool: KvBlocks,
        *,
        max_batch: int,
        budget: int,
        context: int,
        eos: frozenset[int],
    ) -> None:
        if max_batch < 1 or budget < max_batch:
            what = f"a budget of {budget} tokens a step cannot serve a batch of {max_batch}"
            raise RequestError(what, fix="use a batch of at least 1 and a budget no less than it")
        self._pool, self._slots = pool, pool.num_free * pool.block_size
        self._max_batch, self._budget, self._context, self._eos = max_batch, budget, context, eos
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def num_waiting(self) -> int:
        """Requests that are not admitted yet."""
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

    def next_batch(self) -> list[Piece]:
        """Admits what fits, then shares the budget out; empty when all requests are finished."""
        self._admit()
        room, pieces = self._budget, []
        for request in sorted(self._running, key=lambda r: not r.output):
            if take := min(room, request.missing):
                start = request.cached
                ids = (request.prompt + request.output)[start : start + take]
                pieces.append(Piece(request, start, ids, samples=take == request.missing))
                room -= take
        return pieces

    def commit(self, pieces: list[Piece], tokens: list[int]) -> list[tuple[Request, int]]:
        """Books what a step computed, and frees the blocks of what ended."""
        for piece in pieces:
            piece.request.cached += len(piece.ids)
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

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            request = self._waiting[0]
            need = self._pool.blocks_for(len(request.prompt) + request.limit - 1)
            if need > self._pool.num_free:
                return
            request.blocks = self._pool.allocate(need)
            self._running.append(self._waiting.popleft())

    def _release(self, request: Request) -> None:
        self._running.remove(request)
        self._pool.free(request.blocks)
        request.blocks = []


def generate(model: Model, scheduler: Scheduler) -> Iterator[tuple[Request, int]]:
    """Runs steps until every request is finished, and yields each new token as it comes.

    However the iteration ends (also by an exception or ``close``), all blocks go back.
    """
    try:
        while pieces := scheduler.next_batch():
            yield from scheduler.commit(pieces, model.step(pieces))
    finally:
        scheduler.cancel_all()
