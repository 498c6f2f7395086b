"""Worlds of ranks: processes of a fork server, asked and answered over pipes, each with a deadline.

A rank that does not answer in time is killed with its world; the next question gets a new one. So
no check of collectives can hang, whatever the code under test does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Final

from trivet_conformance.collective import rank as program
from trivet_conformance.collective.judged import Wrong
from trivet_conformance.subject.comm_leg import CommLeg

START_SECONDS: Final = 120.0
"""Time that a world has to start, in which a plugin is loaded on every rank."""

GRACE_SECONDS: Final = 1.0
"""Time that ranks have to answer, too, once one of them has said that something is wrong."""

PRELOADED: Final = ("torch", "torch.distributed", "trivet.collectives",
                    "trivet_conformance.collective.rank")  # fmt: skip


@dataclass
class World:
    """Ranks that are alive.

    Args:
        processes: by rank.
        connections: to them.
        folder: where they meet.
    """

    processes: list[Any] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    folder: str = ""

    def end(self) -> None:
        """Ends every rank, however it is."""
        for process in self.processes:
            if process.is_alive():
                process.kill()  # also of one that was stopped
        for process in self.processes:
            process.join()
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Ranks:
    """Starts worlds as they are needed, and keeps them from one question to the next.

    Args:
        leg: what every rank makes.
        timeout: of the groups that are opened, in seconds.
        deadline: seconds in which every rank must have answered a question.
        environ: variables of every rank.
    """

    def __init__(
        self, leg: CommLeg, timeout: float, deadline: float, environ: Mapping[str, str] = {}
    ) -> None:
        self.leg = leg
        self.timeout = timeout
        self.deadline = deadline
        self.environ = dict(environ)
        self._worlds: dict[int, World] = {}
        self._end = weakref.finalize(self, _end_all, self._worlds)

    def close(self) -> None:
        """Ends every world; another question starts a new one."""
        _end_all(self._worlds)

    def ask(
        self, size: int, body: Callable[..., Any], dies: Collection[int] = (), **given: Any
    ) -> list[Any]:
        """What a function of a module returns on every rank; that of one that dies is None.

        Raises:
            Wrong: a rank says that the contract is broken, raises, ends, or does not answer.
        """
        world = self._world(size)
        name = f"{body.__module__}:{body.__name__}"
        for connection in world.connections:
            with contextlib.suppress(OSError):  # it died; that is found below
                connection.send((name, given, 2 * self.deadline))
        answers, silent = self._answers(world, self.deadline, dies)
        if dies or silent or any(word != "ok" for word, _ in answers.values()):
            self._forget(size)
        _judge(answers, silent, self.deadline)
        return [answers[r][1] if r in answers else None for r in range(size)]

    def _world(self, size: int) -> World:
        world = self._worlds.get(size)
        if world is None or not all(p.is_alive() for p in world.processes):
            self._forget(size)
            world = self._worlds[size] = self._started(size)
        return world

    def _forget(self, size: int) -> None:
        if world := self._worlds.pop(size, None):
            world.end()

    def _started(self, size: int) -> World:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        world = World(folder=tempfile.mkdtemp(prefix="trivet-ranks-"))
        job = {
            "size": size, "folder": world.folder, "recipe": self.leg.recipe,
            "timeout": self.timeout, "environ": self.environ,
        }  # fmt: skip
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=program.main, args=(there, {**job, "rank": rank}), daemon=True
            )
            with _no_main_program():
                process.start()
            there.close()
            world.processes.append(process)
            world.connections.append(here)
        answers, silent = self._answers(world, START_SECONDS, ())
        try:
            _judge(answers, silent, START_SECONDS)
        except Wrong as problem:
            world.end()
            msg = f"a world of {size} ranks does not start: {problem}"
            raise Wrong(msg) from problem
        return world

    @staticmethod
    def _answers(
        world: World, seconds: float, dies: Collection[int]
    ) -> tuple[dict[int, program.Answer], dict[int, str]]:
        """What ranks answered, and of the others what became of them."""
        open_: dict[Any, int] = {c: r for r, c in enumerate(world.connections) if r not in dies}
        answers: dict[int, program.Answer] = {}
        silent: dict[int, str] = {}
        until = time.monotonic() + seconds
        while open_ and (left := until - time.monotonic()) > 0:
            for one in multiprocessing.connection.wait(list(open_), left):
                ready: Any = one
                rank = open_.pop(ready)
                try:
                    answers[rank] = ready.recv()
                except (EOFError, OSError):
                    process = world.processes[rank]
                    process.join(GRACE_SECONDS)
                    silent[rank] = f"ends with {process.exitcode}"
                if rank in silent or answers[rank][0] != "ok":
                    until = min(until, time.monotonic() + GRACE_SECONDS)
        silent |= dict.fromkeys(open_.values(), "does not answer")
        return answers, silent


@contextlib.contextmanager
def _no_main_program() -> Iterator[None]:
    """Ranks do not run the main program of this process again, which may be anybody's script."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _judge(answers: Mapping[int, program.Answer], silent: Mapping[int, str], limit: float) -> None:
    told = [f"rank {r}: {text}" for r, (word, text) in sorted(answers.items()) if word != "ok"]
    if not told and silent:
        told = [f"rank {r} {what} within {limit:g} s" for r, what in sorted(silent.items())]
    if told:
        raise Wrong("; ".join(told))


def _end_all(worlds: dict[int, World]) -> None:
    while worlds:
        worlds.popitem()[1].end()
