"""A report that lies in a folder, as it is found: also one that was cut short."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trivet_conformance.report import lines, verdict
from trivet_conformance.report.errors import ReportError
from trivet_conformance.result import BAD


@dataclass(frozen=True)
class Stored:
    """A report on disk.

    Args:
        folder: where it lies.
        head: what it says of its run.
        results: its results, in the order of the run.
        cut: whether the run did not come to its end.
    """

    folder: Path
    head: Mapping[str, Any]
    results: tuple[Mapping[str, Any], ...]
    cut: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Head and results."""
        return [{"kind": "run", **self.head}, *(dict(r) for r in self.results)]

    @cached_property
    def counts(self) -> Counter[str]:
        """How many results have each status."""
        return Counter(str(r["status"]) for r in self.results)

    @cached_property
    def bad(self) -> tuple[Mapping[str, Any], ...]:
        """The results that make the run fail."""
        return tuple(r for r in self.results if r["status"] in BAD)

    @property
    def ok(self) -> bool:
        """Whether something was judged, nothing is wrong, and the run came to its end."""
        return not self.cut and verdict.in_order(self.head, self.results)

    @property
    def name(self) -> str:
        """The plugin, and the version of its distribution where that is known."""
        version = (self.head.get("plugin_distribution") or {}).get("version", "")
        return f"{self.head.get('plugin', 'unknown')} {version}".rstrip()

    @property
    def device(self) -> str:
        """The device, as a person calls it."""
        device = self.head.get("device") or {}
        return str(device.get("name") or device.get("kind") or "an unknown device")

    @property
    def execution(self) -> str:
        """How it ran: on hardware, emulated, interpreted."""
        device = self.head.get("device") or {}
        return str(self.head.get("execution") or device.get("execution") or "unknown")


def load(folder: Path) -> Stored:
    """The report of a folder.

    Raises:
        ReportError: there is none, or its first line is no head of a known schema.
    """
    try:
        rows = lines.read(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        fix = "name the folder that `trivet-conformance run --dir` wrote"
        raise ReportError(f"no {lines.LINES} in {folder}", fix=fix) from error
    if not rows or rows[0].get("kind") != "run":
        raise ReportError(f"{folder / lines.LINES} does not begin with the head of a run")
    head = {k: v for k, v in rows[0].items() if k != "kind"}
    if head.get("schema") != lines.SCHEMA:
        what = f"{folder / lines.LINES} has schema {head.get('schema')!r}, not {lines.SCHEMA}"
        raise ReportError(what, fix="read it with the kit that wrote it")
    results = tuple(r for r in rows[1:] if r.get("kind") == "result")
    return Stored(folder, head, results, not lines.ended(folder))


def save(folder: Path, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Writes lines that are known already, and their summary; gives the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(r, sort_keys=True, default=str) + "\n" for r in rows)
    (folder / lines.LINES).write_text(text, encoding="utf-8")
    return lines.close(folder, seconds)
