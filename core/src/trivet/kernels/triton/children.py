"""Processes that do jobs side by side; a job that kills its process costs nothing but itself.

Compilers end by signals, kernels by faults after which a process can use its device no more.
Children are spawned, never forked, so that each starts the device for itself.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from queue import LifoQueue
from types import TracebackType
from typing import Any, Final, Self

LIMIT_S: Final = 300.0
"""Seconds after which a job counts as hung."""


@dataclass(frozen=True)
class Lost:
    """What stands for the answer of a job that has none."""

    reason: str


class Spoilt(Exception):
    """Raised by a job whose process cannot go on; its text is the answer, as ``Lost``."""


class Children:
    """Up to ``count`` processes, each started when a job wants it; a context manager.

    Args:
        count: how many work at once.
        limit_s: seconds a job may take; its process is killed then.
        home: a module that each imports before its first job; none if it is empty.
    """

    def __init__(self, count: int, limit_s: float = LIMIT_S, *, home: str = "") -> None:
        self._limit, self._home = limit_s, home
        self._idle: LifoQueue[_Child | None] = LifoQueue()
        for _ in range(max(1, count)):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="trivet-children")

    def done(
        self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Each job, the arguments of a call, with its answer or ``Lost``, as they end."""
        asked = {self._threads.submit(self._one, function, job): job for job in jobs}
        try:
            for answered in as_completed(asked):
                yield asked[answered], answered.result()
        finally:
            for waiting in asked:
                waiting.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            child = self._idle.get()
            if child is not None:
                child.end()

    def _one(self, function: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        child = self._idle.get()
        try:
            child = child or _Child(self._home)
            answer = child.ask(function, job, self._limit)
            if child.ended:
                child = None
            return answer
        finally:
            self._idle.put(child)


class _Child:
    """One process and the line to it."""

    def __init__(self, home: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, home), daemon=True)
        self._process.start()
        far.close()
        self.ended = False

    def ask(self, function: Callable[..., Any], job: tuple[Any, ...], limit: float) -> Any:
        try:
            self._line.send((function, job))
            if not self._line.poll(limit):
                self._process.kill()
                self.end()
                return Lost(f"it did not end within {limit:.0f} seconds")
            going_on, answer = self._line.recv()
        except (EOFError, OSError):
            self.end()
            code = self._process.exitcode or 0
            how = f"by signal {-code}" if code < 0 else f"with status {code}"
            return Lost(f"its process ended {how}")
        if not going_on:
            self.end()
        return answer

    def end(self) -> None:
        """Closes the line, upon which the process ends, and waits for it."""
        self.ended = True
        self._line.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(line: Connection[Any, Any], home: str) -> None:
    """Does what comes in until nothing does any more.

    What a compiler prints (all of its input, when it fails) must not mix with the parent's output.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            function, job = line.recv()
        except EOFError:
            return
        going_on = True
        try:
            if home:
                import_module(home)
            answer = function(*job)
        except Spoilt as error:
            going_on, answer = False, Lost(str(error))
        except Exception as error:  # noqa: BLE001 - a vendor's code, reported in its place
            answer = Lost(f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")
        line.send((going_on, answer))
        if not going_on:
            return
