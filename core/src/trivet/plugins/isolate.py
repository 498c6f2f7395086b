"""Asks each plugin in a process of its own, with a time limit.

What a process cannot survive - a hang, ``os._exit``, a crash of native code - becomes a line of
the report like everything else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trivet.catalogue import operators
from trivet.errors import TrivetError
from trivet.plugins.discovery import Discovery
from trivet.plugins.offer import collect
from trivet.plugins.report import Line, Report, Status
from trivet.plugins.resolve import resolve
from trivet.settings import read

SECONDS: Final = 60.0
"""Time that a plugin has to import, probe and list what it brings."""

START_SECONDS: Final = 300.0
"""Time that a new interpreter has to import torch and core, before the plugin's time begins."""

_CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trivet.plugins.isolate import child; child(sys.argv[2], sys.argv[3])"
)
_STAGES: Final = (
    ("starting", Status.RAISED),
    ("importing it", Status.IMPORT_FAILED),
    ("probing it", Status.RAISED),
    ("starting the device that it adds to", Status.FOUND),
    ("listing what it brings", Status.RAISED),
)


def isolated_report(
    seconds: float = SECONDS, *, environ: Mapping[str, str] | None = None
) -> Report:
    """The report of a discovery in which every plugin was loaded, each in its own process.

    Args:
        seconds: time limit of each plugin.
        environ: environment of the processes; by default this process's own.
    """
    environment = dict(os.environ if environ is None else environ)
    report = Discovery(read(environment)).report()
    lines = [
        _ask(line, seconds, environment) if line.status is Status.FOUND else line for line in report
    ]
    return replace(report, lines=tuple(lines))


def _ask(line: Line, seconds: float, environment: Mapping[str, str]) -> Line:
    """The line of one plugin after a process of its own has loaded it."""
    with tempfile.TemporaryDirectory() as folder:
        answer, errors = Path(folder, "answer"), Path(folder, "errors")
        command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), line.plugin, str(answer)]
        with errors.open("wb") as stderr, subprocess.Popen(  # noqa: S603 - our own code
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
        ) as process:  # fmt: skip
            in_time = _wait(process, answer, seconds)
            if not in_time:
                process.kill()
        if not in_time:
            return _lost(line, answer, f"no answer within {seconds:g} s")
        rows = _rows(answer)
        if rows and isinstance(rows[-1], dict):
            return _line(rows[-1])
        how = f"ended its process with status {process.returncode}"
        if process.returncode < 0:
            how = f"ended its process by {signal.Signals(-process.returncode).name}"
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return _lost(line, answer, how + (f": {said[-1]}" if said else ""))


def _wait(process: subprocess.Popen[bytes], answer: Path, seconds: float) -> bool:
    """Whether the process ends in time; a plugin's time begins when its interpreter is up."""
    limit = time.monotonic() + START_SECONDS
    started = False
    while process.poll() is None:
        if not started and answer.is_file():
            started, limit = True, time.monotonic() + seconds
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def _rows(answer: Path) -> list[Any]:
    text = answer.read_text(encoding="utf-8") if answer.is_file() else ""
    return [json.loads(row) for row in text.splitlines()]


def _lost(line: Line, answer: Path, how: str) -> Line:
    """The line of a plugin whose process gave no answer: how it ended, and in which stage."""
    stages = [row for row in _rows(answer) if isinstance(row, int)]
    doing, status = _STAGES[stages[-1] if stages else 0]
    return replace(
        line,
        status=status,
        reason=f"{how}, while {doing}",
        fix=f"TRIVET_DENY={line.plugin} leaves it out; tell who makes {line.dist}",
    )


def _line(row: Mapping[str, Any]) -> Line:
    error = RuntimeError(row["error"]) if row["error"] else None
    given = {"status": Status(row["status"]), "details": tuple(row["details"]), "error": error}
    return Line(**{**row, **given})


def child(plugin: str, answer: str) -> None:
    """Runs in the process of one plugin: loads it, and writes stages and its line to a file."""

    def write(row: object) -> None:
        with Path(answer).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    kind = Discovery(read()).line(plugin).extends
    # nobody else's code runs here, except that of the device that this plugin adds to
    alone = replace(read(), device="", allow=(plugin, kind) if kind else (plugin,))
    discovery = Discovery(alone)
    write(1)
    discovery.load(plugin)
    write(2)
    discovery.devices(plugin)
    usable = discovery.line(plugin).usable
    if usable and kind:
        write(3)
        usable = kind in discovery.names and bool(discovery.devices(kind))
    if usable:
        write(4)
        try:
            collect(discovery, resolve(kind or plugin, discovery), operators())
        except TrivetError as error:
            if discovery.line(plugin).usable:
                discovery.refuse(plugin, Status.BROKEN, error.what, error.fix)
    write(discovery.line(plugin).to_json())
