"""Waiver files from reports: failures are listed, what passes is dropped, words of people stay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from trivet_conformance.report import waivers
from trivet_conformance.report.stored import Stored
from trivet_conformance.result import Status
from trivet_conformance.suite.version import SUITE

_FAILS: Final = waivers.KINDS["xfail"] | {Status.WAIVED}
_PASSES: Final = frozenset({Status.PASS, Status.REFUSED_OK, Status.XPASS})
_ORDER: Final = (
    "id", "kind", "reason", "issue", "owner", "devices", "suite", "granted", "expires",
)  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """What a refreshed file holds.

    Args:
        text: the file.
        new: ids that a person must now explain.
        kept: ids of entries that still hold.
        dropped: ids of entries that pass now.
        unseen: ids of entries of which the report says nothing; they are kept.
    """

    text: str
    new: tuple[str, ...]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    unseen: tuple[str, ...]


def expect(report: Stored, path: Path, *, today: date | None = None) -> Expected:
    """The waiver file that fits a report; nothing is written.

    An entry with a star of which some checks pass now gives way to one entry a check that fails.

    Raises:
        WaiverError: the old file is no waiver file.
    """
    today = today or datetime.now(UTC).date()
    old = waivers.read(path) if path.is_file() else []
    status = {str(r["id"]): Status(r["status"]) for r in report.results}
    failing = {i: s for i, s in status.items() if s in _FAILS}
    entries: list[Mapping[str, Any]] = []
    kept, dropped, unseen = [], [], []
    covered: set[str] = set()
    for entry in old:
        name = str(entry.get("id", ""))
        mine = [i for i in status if _covers(name, i)]
        still = [i for i in mine if i in failing]
        if not mine:
            unseen.append(name)
            entries.append(entry)
        elif any(status[i] in _PASSES for i in mine):
            dropped.append(name)
            entries.extend({**entry, "id": i} for i in still if i not in covered)
            covered.update(still)
        else:
            kept.append(name)
            entries.append(entry)
            covered.update(still)
    new = tuple(i for i in failing if i not in covered)
    entries.extend(_new(i, report, today) for i in new)
    return Expected(_text(entries), new, tuple(kept), tuple(dropped), tuple(unseen))


def _covers(name: str, result: str) -> bool:
    return result.startswith(name[:-1]) if name.endswith("*") else result == name


def _new(result: str, report: Stored, today: date) -> dict[str, Any]:
    kind = str((report.head.get("device") or {}).get("kind") or report.head.get("plugin"))
    suite = str(report.head.get("suite") or SUITE)
    return {
        "id": result,
        "kind": "xfail",
        "reason": waivers.TODO,
        "issue": waivers.TODO,
        "owner": waivers.TODO,
        "devices": [kind],
        "suite": f"=={suite}",
        "granted": today,
        "expires": today + waivers.LONGEST,
    }


def _text(entries: Sequence[Mapping[str, Any]]) -> str:
    parts = ["# Failures that are known. Fill in every TODO: until then the file is refused.\n"]
    for entry in entries:
        keys = [k for k in _ORDER if k in entry] + sorted(entry.keys() - set(_ORDER))
        lines = "".join(f"{k} = {_value(entry[k])}\n" for k in keys)
        parts.append(f"[[waiver]]\n{lines}")
    return "\n".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)  # dates and numbers are written as they read
