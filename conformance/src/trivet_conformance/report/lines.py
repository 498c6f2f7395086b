"""Reports: one line of JSON a result while a run goes on, and a summary derived from the lines."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

import trivet
from trivet_conformance.report.environment import environment
from trivet_conformance.report.errors import ReportError
from trivet_conformance.report.schema import problem
from trivet_conformance.report.verdict import in_order, why_not
from trivet_conformance.result import BAD, Result, Status
from trivet_conformance.suite.version import SUITE

SCHEMA: Final = 1
LINES: Final = "report.jsonl"
SUMMARY: Final = "summary.json"
_AGAIN: Final = "restore the file, or run again"


class Writer:
    """Writes ``report.jsonl`` into a folder; a run that crashes keeps what it had.

    Args:
        folder: made when it is missing.
        head: what the first line says of the run.
        kept: lines of the report in the folder that this run goes on with.
    """

    def __init__(
        self, folder: Path, head: Mapping[str, Any], kept: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._folder = folder
        self._head = dict(head)
        self._kept = kept

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / SUMMARY).unlink(missing_ok=True)
        new = self._folder / f"{LINES}.new"  # what was kept is never lost half-way
        self._file = new.open("w", encoding="utf-8", buffering=1)
        self._line({"kind": "run", **self._head})
        for row in self._kept:
            self._line(row)
        new.replace(self._folder / LINES)
        self._last = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, result: Result) -> None:
        """Writes one result, at once; its seconds are those since the line before."""
        now = time.monotonic()
        self._line({**result.to_json(), "seconds": round(now - self._last, 4)})
        self._last = now

    def _line(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, sort_keys=True, default=str) + "\n")


def head(
    plugin: str,
    *,
    seed: int,
    quick: bool = False,
    device: Mapping[str, Any],
    mode: str = "",
    shard: tuple[int, int] = (1, 1),
    profile: str = "",
    level: str = "",
) -> dict[str, Any]:
    """What a report says of its run.

    Args:
        plugin: name of the plugin.
        seed: decides every random number.
        quick: small grids; ``mode`` says it too, and wins.
        device: the device, as plain values.
        mode: ``quick``, ``full`` or ``certify``.
        shard: which part of the run this is, of how many, counted from one.
        profile: the profile that a claim is about, if any.
        level: the level that a claim is about, if any.
    """
    import trivet_conformance

    return {
        "schema": SCHEMA,
        "suite": SUITE,
        "plugin": plugin,
        "device": dict(device),
        "execution": str(device.get("execution", "")),
        "seed": seed,
        "mode": mode or ("quick" if quick else "full"),
        "profile": profile,
        "level": level,
        "shard": list(shard),
        "kit": trivet_conformance.__version__,
        "trivet": trivet.__version__,
        "contract": trivet.CONTRACT,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **environment(plugin),
    }


@dataclass
class Cell:
    """Counts of one operator, provider and family."""

    counts: dict[str, int] = field(default_factory=dict)
    margin: float = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts one result."""
        status = str(row["status"])
        self.counts[status] = self.counts.get(status, 0) + 1
        if status == Status.PASS:
            self.margin = max(self.margin, float(row["margin"]))

    @property
    def bad(self) -> int:
        """How many results make the run fail."""
        return sum(self.counts.get(s.value, 0) for s in BAD)


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of a report, also of one that was cut short.

    Raises:
        FileNotFoundError: there is no report in that folder.
        ReportError: it is not UTF-8, or a line is none of a report.
    """
    path, found = folder / LINES, list[dict[str, Any]]()
    try:
        rows = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ReportError(f"{path} is not UTF-8 (byte {error.start})", fix=_AGAIN) from error
    for number, line in enumerate(rows, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(rows):
                break  # the last line of a run that was killed, which has no end
            raise ReportError(f"{path}, line {number} is no JSON: {error}", fix=_AGAIN) from error
        if why := problem(row):
            raise ReportError(f"{path}, line {number} is none of a report: {why}", fix=_AGAIN)
        found.append(row)
    return found


def cells(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], Cell]:
    """Counts by operator, provider and family, in order of appearance."""
    found: dict[tuple[str, str, str], Cell] = {}
    for row in rows:
        if row["kind"] == "result":
            key = str(row["operator"]), str(row["provider"]), str(row["family"])
            found.setdefault(key, Cell()).add(row)
    return found


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of a report: counts, worst margins, and everything that is wrong."""
    rows = list(rows)
    table: dict[str, Any] = {}
    counts: dict[str, int] = {s.value: 0 for s in Status}
    for (op, provider, family), cell in cells(rows).items():
        entry = {**cell.counts, "margin": cell.margin}
        table.setdefault(op, {}).setdefault(provider, {})[family] = entry
        for status, count in cell.counts.items():
            counts[status] += count
    run: dict[str, Any] = next((dict(r) for r in rows if r["kind"] == "run"), {})
    run.pop("kind", None)
    keys = ("id", "family", "operator", "provider", "status", "reason", "repro")
    bad = [{k: r[k] for k in keys} for r in rows if r["kind"] == "result" and r["status"] in BAD]
    waived = [
        {k: r[k] for k in keys}
        for r in rows
        if r["kind"] == "result" and r["status"] == Status.WAIVED
    ]
    results = [r for r in rows if r["kind"] == "result"]
    return {
        "run": run,
        "ok": in_order(run, results),
        "why": why_not(run, results),
        "counts": counts,
        "operators": table,
        "bad": bad,
        "waived": waived,
    }


def close(folder: Path, seconds: float, *, finished: bool = True) -> dict[str, Any]:
    """Derives ``summary.json`` from the lines, writes it, and gives it.

    A run that did not come to its end is never in order.
    """
    summary = summarise(read(folder)) | {"seconds": round(seconds, 1), "finished": finished}
    summary["ok"] = summary["ok"] and finished
    if not finished:
        summary["why"] = "the run did not come to its end"
    text = json.dumps(summary, indent=1, sort_keys=True)
    (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    return summary


def ended(folder: Path) -> bool:
    """Whether the run of a report came to its end: it wrote a summary that says so."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and bool(summary.get("finished"))
