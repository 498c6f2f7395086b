"""A session: one run from its options to a report on disk, begun anew or gone on with."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from trivet_conformance.collective import comm_for
from trivet_conformance.memory import memory_for
from trivet_conformance.report import lines as report
from trivet_conformance.report.errors import ReportError
from trivet_conformance.report.waivers import Waivers
from trivet_conformance.report.waivers import load as load_waivers
from trivet_conformance.result import Result, Status
from trivet_conformance.running.drive import LIMIT, Driver
from trivet_conformance.running.run import Step, run, steps
from trivet_conformance.running.wire import Job
from trivet_conformance.subject.locating import locate, subject_of
from trivet_conformance.suite.levels import families_for

SAME: Final = (
    "suite", "plugin", "device", "seed", "mode", "profile", "level", "shard",
    "families", "operators", "kit", "trivet", "contract", "torch", "python",
)  # fmt: skip
"""What a report and the run that goes on with it must have in common."""


@dataclass(frozen=True)
class Options:
    """What is run, and how.

    Args:
        spec: an installed plugin, ``reference``, or a path.
        folder: where the report goes.
        ops: names of operators; none means all.
        families: names of families; none means those of the level, or all.
        level: only what this level wants; empty for everything.
        profile: what is claimed; empty for nothing.
        mode: ``full``, ``quick`` or ``certify``.
        seed: decides every random number.
        case: id of the only check to run.
        shard: (which, of how many), counted from one.
        limit: seconds of one case.
        resume: whether to go on with the report that lies in the folder.
        execution: the word that the device must have; empty for any.
        in_process: whether plugin code runs in this process: for a debugger.
        waivers: a file of waivers.
    """

    spec: str
    folder: Path
    ops: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    level: str = ""
    profile: str = ""
    mode: str = "full"
    seed: int = 0
    case: str = ""
    shard: tuple[int, int] = (1, 1)
    limit: float = LIMIT
    resume: bool = False
    execution: str = ""
    in_process: bool = False
    waivers: Path | None = None

    @property
    def narrowed(self) -> bool:
        """Whether checks are left out on purpose."""
        return bool(self.ops or self.families or self.case or self.shard != (1, 1) or self.level)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of the families that run; none means all."""
        if not self.level:
            return self.families
        wanted = (*families_for(self.level), *memory_for(self.level), *comm_for(self.level))
        return tuple(n for n in wanted if not self.families or n in self.families)

    @property
    def loads_only(self) -> bool:
        """Whether no family is wanted at all."""
        return bool(self.level) and not self.chosen


@dataclass
class Session:
    """Runs options and keeps the report; ``total`` is known when the plugin is loaded.

    Raises:
        TrivetError: there is no such plugin.
        ReportError: a report cannot be gone on with; a waiver is malformed.
    """

    options: Options
    progress: Step = lambda _: None
    total: int = 0
    finished: bool = False
    refused: str = ""
    _waivers: Waivers = field(default_factory=Waivers)
    _name: str = ""

    def run(self) -> dict[str, Any]:
        """The summary; an interrupt leaves a report that can be gone on with, and is raised."""
        begin, options = time.monotonic(), self.options
        summary: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as scratch:
            try:
                self._write(self._in_process() if options.in_process else self._driven(scratch))
            finally:
                if (options.folder / report.LINES).exists() and not self.refused:
                    seconds = time.monotonic() - begin
                    summary = report.close(options.folder, seconds, finished=self.finished)
        if self.refused:
            raise ReportError(self.refused)
        if options.waivers is not None and not options.narrowed and self.finished:
            self._waivers.check_all_used()
        return summary

    def _write(self, found: Iterator[tuple[Mapping[str, Any] | None, Result]]) -> None:
        """Writes results as they come; those before the device is known wait for the head."""
        waiting: list[Result] = []
        writer: report.Writer | None = None
        try:
            for head, result in found:
                waiting.append(result)
                if writer is None and head is not None:
                    writer = self._begin(head).__enter__()
                if writer is not None:
                    for one in waiting:
                        writer.add(self._waivers.judge(one))
                    waiting = []
            if writer is None and not self.refused:
                writer = self._begin({"device": {}, "implementations": 0}).__enter__()
                for one in waiting:
                    writer.add(one)
        finally:
            if writer is not None:
                writer.__exit__(None, None, None)

    def _begin(self, known: Mapping[str, Any]) -> report.Writer:
        options, device = self.options, known["device"]
        if options.waivers is not None:
            self._waivers = load_waivers(options.waivers, device=device)
        head = report.head(
            self._name,
            seed=options.seed,
            device=device,
            mode=options.mode,
            shard=options.shard,
            profile=options.profile,
            level=options.level,
        ) | {
            "implementations": known["implementations"],
            "families": list(options.chosen),
            "operators": list(options.ops),
            "case": options.case,
        }
        kept = self._kept(head) if options.resume else []
        for row in kept:
            self._waivers.find(str(row["id"]))
        return report.Writer(options.folder, head, kept)

    def _kept(self, head: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The results of a report that this run goes on with."""
        rows = _earlier(self.options.folder)
        before = next((r for r in rows if r["kind"] == "run"), {})
        differ = [k for k in SAME if before.get(k) != head.get(k)]
        if differ:
            told = "; ".join(f"{k} was {before.get(k)!r} and is {head.get(k)!r}" for k in differ)
            fix = "use the same options and versions, or run into another folder"
            raise ReportError(f"{self.options.folder} cannot be resumed: {told}", fix=fix)
        return [r for r in rows if r["kind"] == "result" and not _left(r)]

    def _driven(self, scratch: str) -> Iterator[tuple[Mapping[str, Any] | None, Result]]:
        options = self.options
        located = locate(options.spec, scratch, options.execution)
        self._name = located.name
        job = Job(
            located.name,
            options.spec,
            located.paths,
            families=options.chosen,
            ops=options.ops,
            seed=options.seed,
            quick=options.mode == "quick",
            case=options.case,
            shard=options.shard,
            checks_only=options.loads_only,
            execution=options.execution,
            harness=not (options.families or options.ops or options.case)
            or options.case.startswith("harness/"),
        )
        driver = Driver(job, limit=options.limit, progress=self.progress)
        if options.resume:
            rows = [r for r in _earlier(options.folder) if r["kind"] == "result"]
            driver.done = {str(r["id"]) for r in rows if not _left(r)}
        for result in driver.run():
            head = self._head(driver.hello)
            yield head, result
        self.finished, self.refused = driver.finished, driver.refused
        if not self.total and driver.hello:
            self._head(driver.hello)

    def _head(self, hello: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if not hello:
            return None
        self.total = len(hello["groups"])
        return {"device": hello["device"], "implementations": hello.get("implementations", 0)}

    def _in_process(self) -> Iterator[tuple[Mapping[str, Any] | None, Result]]:
        options = self.options
        whole = subject_of(options.spec, options.execution)
        self._name = whole.plugin
        subject = whole.only(options.ops) if options.ops else whole
        if options.loads_only:
            subject = replace(subject, targets=(), memory=None, comm=None)
        self.total = steps(subject, options.chosen)
        head = {
            "device": whole.device.info.to_json(),
            "implementations": len(whole.targets),
        }
        for result in run(
            subject,
            families=options.chosen,
            seed=options.seed,
            quick=options.mode == "quick",
            case=options.case,
            progress=self.progress,
        ):
            yield head, replace(result, plugin=options.spec)
        self.finished = True


def _earlier(folder: Path) -> list[dict[str, Any]]:
    try:
        return report.read(folder)
    except FileNotFoundError:
        msg = f"{folder} has no report to go on with"
        raise ReportError(msg, fix="leave --resume out") from None


def _left(row: Mapping[str, Any]) -> bool:
    """Whether a line says that something was left for want of a living process."""
    case = str(row["id"]).split("/", 3)[-1].rpartition("/")[-1]
    return row["status"] == Status.NOT_RUN and case.startswith("cases:")
