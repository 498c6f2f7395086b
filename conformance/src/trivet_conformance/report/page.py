"""A report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment

from trivet_conformance.report.compare import Difference, compare
from trivet_conformance.report.stored import Stored
from trivet_conformance.result import BAD, Status

PASSES_LISTED: Final = 2000
"""Plain passes in the list of all checks; the matrix counts every one."""

SHADES: Final = 10
MARK: Final = {
    Status.PASS: "\u2713",
    Status.REFUSED_OK: "\u2713",
    Status.NOT_SUPPORTED: "\u2013",
    Status.NOT_RUN: "\u2013",
    Status.WAIVED: "W",
}
_GOOD: Final = (Status.PASS, Status.REFUSED_OK)
_UNTRIED: Final = (Status.NOT_SUPPORTED, Status.NOT_RUN)


def page(report: Stored, against: Stored | None = None) -> str:
    """The HTML of a report.

    Args:
        report: the report.
        against: an earlier one; what changed since is told on the page.
    """
    text = files("trivet_conformance").joinpath("report", "page.html.j2").read_text("utf-8")
    script = files("trivet_conformance").joinpath("report", "page.js").read_text("utf-8")
    style = files("trivet_conformance").joinpath("report", "page.css").read_text("utf-8")
    made = Environment(autoescape=True, trim_blocks=True,
                       lstrip_blocks=True)  # fmt: skip
    difference = compare(against, report) if against is not None else None
    return made.from_string(text).render(
        report=report,
        head=report.head,
        verdict=verdict(report),
        families=list(dict.fromkeys(str(r["family"]) for r in report.results)),
        groups=_matrix(report.results),
        counts=[(s.value, n) for s in Status if (n := report.counts[s.value])],
        bad=_failures(report.results),
        worst=_worst(report.results),
        waived=[r for r in report.results if r["status"] in {Status.WAIVED, Status.XPASS}],
        untried=_untried(report.results),
        listed=_listed(report.results),
        hidden=max(report.counts[Status.PASS] - PASSES_LISTED, 0),
        difference=difference_rows(difference) if difference is not None else [],
        remark=difference.remark if difference is not None else "",
        against=against,
        facts=_facts(report.head),
        marks={s.value: MARK.get(s, "\u2717") for s in Status},
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def verdict(report: Stored) -> tuple[str, str]:
    """A class, and one sentence."""
    if report.bad:
        many = "1 check fails" if len(report.bad) == 1 else f"{len(report.bad)} checks fail"
        return "bad", many + (", and the run was cut short" if report.cut else "")
    if report.cut:
        return "bad", "the run was cut short; what it did judge is below"
    if not report.ok:
        return "none", "nothing was judged"
    waived = report.counts[Status.WAIVED]
    return "good", f"nothing fails{f', {waived} waived' if waived else ''}"


def difference_rows(found: Difference) -> list[tuple[str, list[tuple[str, str]]]]:
    """Sections of a difference: a title, and (id, remark) of each entry."""
    margins = [(i, f"margin {b:.2f} \u2192 {a:.2f}") for i, b, a in found.margins]
    sections = (
        ("new failures", [(i, found.reasons[i]) for i in found.failing]),
        ("fixed", [(i, "") for i in found.fixed]),
        ("no longer judged", [(i, "") for i in found.lost]),
        ("margins that moved by more than 0.2", margins),
        ("only in the earlier run", [(i, "") for i in found.only_before]),
        ("only in this run", [(i, "") for i in found.only_after]),
    )
    return [(title, rows) for title, rows in sections if rows]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _matrix(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry an operator and provider, one row a dtype, one cell a family."""
    found: dict[tuple[str, str], dict[str, dict[str, list[Mapping[str, Any]]]]] = {}
    for row in results:
        rows = found.setdefault((str(row["operator"]), str(row["provider"])), {})
        cells = rows.setdefault(str(row.get("dtype") or "any"), {})
        cells.setdefault(str(row["family"]), []).append(row)
    return [
        {
            "operator": op,
            "provider": provider,
            "rows": [
                {"dtype": dtype, "statuses": " ".join(_statuses(cells)),
                 "cells": {f: _cell(rs) for f, rs in cells.items()}}
                for dtype, cells in rows.items()
            ],
        }
        for (op, provider), rows in found.items()
    ]  # fmt: skip


def _statuses(cells: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[str]:
    return sorted({str(r["status"]) for rows in cells.values() for r in rows})


def _cell(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    counts = Counter(str(r["status"]) for r in rows)
    margin = max((float(r["margin"]) for r in rows if r["status"] == Status.PASS), default=0.0)
    bad = [(s.value, counts[s]) for s in Status if s in BAD and counts[s]]
    good = sum(counts[s] for s in _GOOD)
    if bad:
        look, mark, text = "bad", "\u2717", ", ".join(f"{n} {s}" for s, n in bad)
        text += f" of {len(rows)}"
    elif counts[Status.WAIVED]:
        look, mark, text = "waived", "W", f"{counts[Status.WAIVED]} waived of {len(rows)}"
    elif good:
        look, mark, text = "good", "\u2713", str(good)
    else:
        look, mark = "none", "\u2013"
        text = f"{len(rows)} {'n/s' if counts[Status.NOT_SUPPORTED] else 'n/r'}"
    return {
        "look": look,
        "mark": mark,
        "text": text,
        "margin": margin if any(r["status"] == Status.PASS for r in rows) else None,
        "shade": min(int(margin * SHADES), SHADES - 1),
        "title": ", ".join(f"{n} {s}" for s, n in counts.items()),
    }


def _failures(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [r for r in results if r["status"] in BAD]


def _worst(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The check of each operator that used the most of its budget, and passed."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in results:
        if row["status"] == Status.PASS and float(row["margin"]) > 0:
            op = str(row["operator"])
            if op not in found or float(row["margin"]) > float(found[op]["margin"]):
                found[op] = row
    return sorted(found.values(), key=lambda r: -float(r["margin"]))


def _untried(results: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Status, reason and ids of what was not judged, the most frequent reason first."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in results:
        if row["status"] in _UNTRIED:
            key = str(row["status"]), str(row["reason"]) or "no reason was given"
            found.setdefault(key, []).append(str(row["id"]))
    order = sorted(found.items(), key=lambda item: -len(item[1]))
    return [(status, reason, ids) for (status, reason), ids in order]


def _listed(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Every check but the passes behind the first 2000."""
    found, passes = [], 0
    for row in results:
        passes += row["status"] == Status.PASS
        if row["status"] != Status.PASS or passes <= PASSES_LISTED:
            found.append(row)
    return found


def _facts(head: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The head of a report as names and texts, nested ones with dots."""
    found = []
    for key, value in head.items():
        if isinstance(value, Mapping):
            found.extend(_facts(value, f"{prefix}{key}."))
        elif value not in (None, "", [], {}):
            listed = isinstance(value, list)
            found.append((prefix + key, ", ".join(map(str, value)) if listed else str(value)))
    return found
