"""The engine thread: it alone touches the model, the scheduler and the pool of blocks.

Others hand it tickets and cancellations through a queue, and get events through a function of the
ticket. Every ticket gets exactly one last event: the end of its answer, or a refusal.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from llm.answer import Answer
from llm.cache import Usage
from llm.errors import EngineError
from llm.protocol.asks import Ask
from llm.protocol.failures import Refusal
from llm.protocol.replies import Reason, reason
from llm.schedule import Model, Request, Scheduler
from llm.tokenizer import Tokenizer
from trivet.errors import TrivetError
from trivet.memory import KvBlocks

LOG = logging.getLogger("llm.serving")
_WINDOW = 10.0  # seconds over which the speed is measured


@dataclass(frozen=True)
class Text:
    """The next text of an answer."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The answer is whole; ``tokens``: how many it has."""

    tokens: int
    why: Reason


Event = Text | Ended | Refusal


@dataclass(eq=False)
class Ticket:
    """A request on its way through the engine; ``emit`` is called in the engine's thread."""

    ask: Ask
    emit: Callable[[Event], None]
    request: Request | None = None
    answer: Answer | None = None
    done: bool = False


@dataclass(frozen=True)
class Status:
    """What the engine is doing; a reader gets a new one after each step."""

    state: Literal["running", "draining", "failed", "stopped"] = "running"
    waiting: int = 0
    running: int = 0
    blocks_free: int = 0
    blocks: int = 0
    steps: int = 0
    tokens: int = 0
    error: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)


class Worker:
    """Runs the engine in a thread of its own.

    Args:
        model: Runs the steps.
        scheduler: Its queue and batch; belongs to the thread once it is started.
        pool: Its blocks.
        tokenizer: Decodes the answers.
        capacity: Most requests that wait or run at a time.
    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        pool: KvBlocks,
        tokenizer: Tokenizer,
        *,
        capacity: int,
    ) -> None:
        self._model, self._scheduler, self._pool = model, scheduler, pool
        self._tokenizer, self._capacity = tokenizer, capacity
        self._inbox: queue.SimpleQueue[tuple[str, Ticket | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # over _open, _state and _recent
        self._open: set[Ticket] = set()
        self._state: Literal["running", "draining", "failed", "stopped"] = "running"
        self._error, self._deadline = "", math.inf
        self.failure: BaseException | None = None
        self._tickets: dict[Request, Ticket] = {}
        self._steps, self._tokens, self._outcomes = 0, 0, Counter[str]()
        self._recent: deque[tuple[float, int]] = deque()
        self._total = pool.num_free
        self.status = Status(blocks_free=self._total, blocks=self._total)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, ask: Ask, emit: Callable[[Event], None]) -> Ticket:
        """Hands a request to the engine; any thread may call it.

        Raises:
            Refusal: Its prompt does not fit (400), too many wait (429), or the engine does not
                run (503).
            PromptTooLong: Its prompt does not fit the model or the cache.
        """
        self._scheduler.refuse_prompt(ask.prompt)
        ticket = Ticket(ask, emit)
        with self._lock:
            if self._state != "running":
                what = f"the engine is {self._state}: {self._error or 'no new requests'}"
                raise Refusal(503, what, code="engine_" + self._state)
            if len(self._open) >= self._capacity:
                what = f"{self._capacity} requests wait or run already; try again later"
                raise Refusal(429, what, code="queue_full", headers={"Retry-After": "1"})
            self._open.add(ticket)
            self._inbox.put(("submit", ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for it any more: its blocks go back before the next step."""
        self._inbox.put(("cancel", ticket))

    def stop(self, patience: float = math.inf) -> None:
        """Takes no more and finishes what is open, for so many seconds since the first call.

        What is open after that is refused, also while a step still runs.
        """
        with self._lock:
            if self._state == "running":
                self._state = "draining"
            self._deadline = min(self._deadline, time.monotonic() + patience)
            left = self._deadline - time.monotonic()
        self._inbox.put(("drain", None))
        if not self.join(left):
            self._refuse_open("stopped")

    def join(self, seconds: float) -> bool:
        """Waits for the thread; whether it has ended."""
        self._thread.join(None if seconds == math.inf else max(0.0, seconds))
        return not self._thread.is_alive()

    def speed(self) -> float:
        """Tokens a second over the last seconds."""
        now = time.monotonic()
        with self._lock:
            while self._recent and self._recent[0][0] < now - _WINDOW:
                self._recent.popleft()
            return sum(count for _, count in self._recent) / _WINDOW

    def _run(self) -> None:
        try:
            while self._obey():
                with self._scheduler.attempt() as pieces:
                    self._note()
                    tokens = self._model.step(pieces) if pieces else []
                if pieces:
                    self._book(self._scheduler.commit(pieces, tokens))
        except BaseException as error:  # whatever it is, nobody may wait for ever
            if isinstance(error, (EngineError, TrivetError)):  # a stack says nothing more
                LOG.error("the engine failed: %s", str(error).partition("\n")[0])  # noqa: TRY400
            else:
                LOG.exception("the engine failed")
            self.failure = error
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._close("stopped")

    def _obey(self) -> bool:
        """Takes what came; waits for it when there is nothing to compute; false at the end."""
        while True:
            idle = not (self._scheduler.num_waiting or self._scheduler.num_running)
            if idle:
                self._note()
                if self._state == "draining" and self._inbox.empty():
                    return False
            if self._state == "stopped":
                return False
            try:
                order, ticket = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if ticket is not None and order == "submit":
                self._admit(ticket)
            elif ticket is not None and not ticket.done and ticket.request is not None:
                self._scheduler.cancel(ticket.request)
                self._settle(ticket, "cancelled")

    def _admit(self, ticket: Ticket) -> None:
        ask = ticket.ask
        ticket.request = self._scheduler.submit(ask.prompt, ask.max_tokens, ask.sampling)
        ticket.answer = Answer(self._tokenizer, ask.stops)
        self._tickets[ticket.request] = ticket

    def _book(self, events: list[tuple[Request, int]]) -> None:
        self._steps += 1
        self._tokens += len(events)
        with self._lock:
            self._recent.append((time.monotonic(), len(events)))
            while self._recent[0][0] < self._recent[-1][0] - _WINDOW:
                self._recent.popleft()
        for request, token in events:
            ticket = self._tickets[request]
            assert ticket.answer is not None  # noqa: S101  (made with its request)
            text = ticket.answer.push(token, last=bool(request.finish))
            if ticket.answer.stopped:
                self._scheduler.end(request, "stop")
            if text:
                ticket.emit(Text(text))
            if request.finish:
                self._settle(
                    ticket, request.finish, Ended(len(request.output), reason(request.finish))
                )

    def _settle(self, ticket: Ticket, outcome: str, last: Event | None = None) -> None:
        ticket.done = True
        if ticket.request is not None:
            self._tickets.pop(ticket.request, None)
        if not self._take(ticket):
            return  # it was refused when the patience ended
        self._outcomes[outcome] += 1
        self._note()
        if last is not None:
            ticket.emit(last)

    def _take(self, ticket: Ticket) -> bool:
        """Whether the caller is the one that ends the ticket: only one is."""
        with self._lock:
            is_open = ticket in self._open
            self._open.discard(ticket)
        return is_open

    def _fail(self, what: str) -> None:
        self._error = what
        self._close("failed")

    def _close(self, state: Literal["failed", "stopped"]) -> None:
        """Ends what is open, in the engine's thread.

        Blocks go back and the status changes before anybody is told: who asks next sees both.
        """
        with self._lock:
            self._state = state
        try:
            self._scheduler.cancel_all()
        finally:
            self._tickets.clear()
            self._note()
            self._refuse_open(state)
            self._note()

    def _refuse_open(self, state: Literal["failed", "stopped"]) -> None:
        """Refuses what is open, in any thread; under the lock no new ticket slips in."""
        with self._lock:
            self._state = state
            left = list(self._open)
        why = self._error or "before the answer was whole"
        failure = Refusal(500, f"the engine {state}: {why}", code="engine_" + state)
        for ticket in left:
            if self._take(ticket):
                self._outcomes[state] += 1
                ticket.emit(failure)

    def _note(self) -> None:
        self.status = Status(
            state=self._state,
            waiting=self._scheduler.num_waiting,
            running=self._scheduler.num_running,
            blocks_free=self._pool.num_free,
            blocks=self._total,
            steps=self._steps,
            tokens=self._tokens,
            error=self._error,
            outcomes=dict(self._outcomes),
            usage=replace(self._scheduler.usage),
        )
