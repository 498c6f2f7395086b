"""Runs a worker process, watches it, and goes on with a new one when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from trivet_conformance.calls.last_words import in_short, last_words
from trivet_conformance.result import Finding, Result, Status
from trivet_conformance.running.run import Place, Step
from trivet_conformance.running.wire import (
    LOST_CHANNEL,
    TOLD_WHY,
    Job,
    Listener,
    place_from_json,
    result_from_json,
)

_PROGRAM: Final = (
    "import json, sys; job = json.loads(sys.stdin.read()); sys.path[:] = job['path']; "
    "__import__(job['module'], fromlist=['main']).main(job)"
)
START_SECONDS: Final = 300.0
"""Time that an interpreter has to import torch and say what it does first."""

LIMIT: Final = 120.0
"""Seconds that one case has, where nothing else is said."""

MAKING: Final = 10
"""How many times that the making of cases has, which computes what is right."""

DEATHS: Final = 20
"""Processes of one run that may die; then the rest is not run."""

_TELLING: Final = ("PYTEST_", "TRIVET_CONFORMANCE")
"""Starts of variables that would tell a plugin that it is under test."""

Ending = tuple[int, bool, list[str]]
"""Exit status, whether the time was over, and the last lines of the error stream."""


@dataclass
class Driver:
    """One run in child processes.

    Args:
        job: what is to be done.
        limit: seconds of a case.
        done: ids of results that are known already.
        deaths: processes that may die.
        progress: called with a text for every implementation in a family.
    """

    job: Job
    limit: float = LIMIT
    done: set[str] = field(default_factory=set)
    deaths: int = DEATHS
    progress: Step = lambda _: None

    hello: dict[str, Any] = field(default_factory=dict, init=False)
    refused: str = field(default="", init=False)
    finished: bool = field(default=False, init=False)
    _closed: set[str] = field(default_factory=set, init=False)
    _open: Place | None = field(default=None, init=False)
    _foreign: bytes = field(default=b"", init=False)
    _printed: list[str] = field(default_factory=list, init=False)

    def run(self) -> Iterator[Result]:
        """Gives each result when it is known; afterwards ``finished`` says whether that is all."""
        died = 0
        with tempfile.TemporaryDirectory() as folder:
            self.job = replace(self.job, folder=self.job.folder or folder)
            while not self.finished and not self.refused:
                ending = yield from self._child(Path(folder))
                if not ending:
                    break
                died += 1
                yield self._death(*ending)
                if not self.hello or died >= self.deaths:
                    yield from self._left(died)
                    break
            else:
                self.finished = not self.refused
        yield from self._told()

    def _child(self, folder: Path) -> Generator[Result, None, Ending | None]:
        """One process until its end; returns how it died, or nothing when it did its work."""
        reading, writing = os.pipe()
        listener = Listener(secrets.token_hex(16))
        errors = folder / "errors"
        with errors.open("w+b") as stderr, (folder / "printed").open("w+b") as stdout:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(writing,),
                env=_environment(),
                start_new_session=True,  # an interrupt is the parent's to handle
            )
            os.close(writing)
            self._hand_over(process, writing, listener)
            self._open = Place("load", "plugin", self.job.plugin, case="start")
            over = False
            try:
                over = yield from self._listen(process, reading, listener)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what the plugin left behind
                process.wait()
                os.close(reading)
                if listener.foreign:
                    self._foreign = self._foreign or listener.sample
                stdout.seek(0)
                said = stdout.read(2000).decode("utf-8", "replace").strip()
                self._printed += [said] if said else []
            if self.finished or self.refused:
                return None
            stderr.seek(0)
            words = last_words(stderr.read().decode("utf-8", "replace"))
            return process.returncode, over, words

    def _hand_over(self, process: subprocess.Popen[bytes], pipe: int, listener: Listener) -> None:
        first = {
            "path": sys.path,
            "module": "trivet_conformance.running.worker",
            "descriptor": pipe,
            "secret": listener.secret,
            "job": self.job.to_json(),
            "done": sorted(self.done),
            "closed": sorted(self._closed),
        }
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(first).encode())
            process.stdin.close()

    def _listen(
        self, process: subprocess.Popen[bytes], reading: int, listener: Listener
    ) -> Generator[Result, None, bool]:
        """Takes messages until the process ends; returns whether its time was over."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            wait = min(0.2, max(deadline - time.monotonic(), 0))
            if select.select([reading], [], [], wait)[0]:
                data = os.read(reading, 1 << 16)
                for message in listener.feed(data):
                    found = self._take(message)
                    if found is not None:
                        yield found
                    deadline = time.monotonic() + self._seconds()
                if not data or self.finished:
                    process.poll()
                    if self.finished:
                        return False
                    return self._gone(process, deadline)
            elif process.poll() is not None and not select.select([reading], [], [], 0)[0]:
                return False  # and nothing that it said is left unread
            elif time.monotonic() > deadline:
                return True

    def _gone(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Waits for a process that closed its channel; whether its time was over."""
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return True
        return False

    def _seconds(self) -> float:
        place = self._open
        if place is None or not place.case:
            return self.limit * MAKING
        return max(self.limit, 60.0) if place.family in ("load", "harness") else self.limit

    def _take(self, message: dict[str, Any]) -> Result | None:
        what = message["what"]
        if what in ("case", "again", "group"):
            self._open = place_from_json(message["place"])
            if what == "group":
                self._group = self._open
                self.progress(self._open.group)
        elif what == "closed":
            self._closed.add(message["group"])
            self._open = None
        elif what == "hello":
            self.hello = message
            self._printed += [message["printed"]] if message["printed"] else []
        elif what == "refused":
            self.refused = message["text"]
        elif what == "end":
            self.finished = not self.refused
        elif what == "passed":
            self._open = None
        elif what == "ends":
            self._why = message
        elif what == "result":
            found = result_from_json(message["row"])
            self.done.add(found.id)
            inner = found.family != "load"
            self._open = replace(self._group, case="") if inner and self._group else None
            return found
        return None

    _group: Place | None = field(default=None, init=False)
    _why: dict[str, Any] = field(default_factory=dict, init=False)

    def _death(self, code: int, over: bool, tail: list[str]) -> Result:
        place = self._open or Place("harness", "plugin", self.job.plugin, case="process")
        status = Status.TIMEOUT if over else Status.CRASH
        if over:
            how = f"no end within {self._seconds():g} s; the process was killed"
        elif code < 0:
            how = f"the process died by {signal.Signals(-code).name}{in_short(tail)}"
        elif code == LOST_CHANNEL:
            how = "the process closed descriptors that are not its own"
        elif code == TOLD_WHY and self._why:
            how, tail = self._why["how"], self._why["notes"]
        else:
            how = f"the process was ended with status {code}{in_short(tail)}"
        self._why = {}
        doing = "" if place.case else ", while cases were made: no further ones of this family"
        if not place.case:
            self._closed.add(place.group)
        self.done.add(place.id)
        return self._result(place, Finding(status, how + doing, 1.0, notes=tuple(tail)))

    def _left(self, died: int) -> Iterator[Result]:
        """What is not run because too many processes died."""
        why = f"{died} processes of this run died" if self.hello else "the plugin does not load"
        for row in self.hello.get("groups", ()):
            place = place_from_json(row)
            if place.group not in self._closed and place.id not in self.done:
                yield self._result(place, Finding(Status.NOT_RUN, why))

    def _told(self) -> Iterator[Result]:
        """What was printed, and what was written where only the kit may write."""
        place = Place("harness", "plugin", self.job.plugin)
        if self._printed:
            notes = tuple("\n".join(self._printed).splitlines()[:20])
            yield self._result(replace(place, case="prints"), Finding(Status.PASS, notes=notes))
        if self._foreign:
            text = self._foreign.decode("utf-8", "replace")
            reason = f"it writes to descriptors that are not its own: {text!r}"
            yield self._result(replace(place, case="writes"), Finding(Status.FAIL, reason, 1.0))

    def _result(self, place: Place, finding: Finding) -> Result:
        row = asdict(place)
        name = place.id.removeprefix(place.start)
        word = str(self.hello.get("device", {}).get("execution", "not_run"))
        return Result(
            row["family"], row["op"], row["provider"], name, row["dtype"], finding, self.job.seed,
            self.job.spec or self.job.plugin, word,
        )  # fmt: skip


def _environment() -> dict[str, str]:
    """This process's variables but those that name the kit; a shell's ``_`` is its command."""
    return {n: v for n, v in os.environ.items() if n != "_" and not n.startswith(_TELLING)}
