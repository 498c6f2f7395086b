"""A badge as SVG: what was claimed, of what, with which suite, when, and on what."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

from trivet_conformance.report.errors import ReportError
from trivet_conformance.report.junit import clean
from trivet_conformance.report.stored import Stored
from trivet_conformance.result import Status
from trivet_conformance.suite import claim

FRESH: Final = timedelta(days=180)
GREEN, RED, GREY, DARK = "#1a7f37", "#b42318", "#6b7280", "#24292f"

_HEIGHT: Final = 20
_PAD: Final = 7
_WIDE: Final = "mwMW@%"
_NARROW: Final = "iljtfrI.,:;|!'()[] "


def badge(report: Stored, *, today: date | None = None) -> str:
    """The badge of a report.

    Green only for a claim that holds and is at most 180 days old; red for a run with failures or
    one that was cut short; grey for everything else. The date is embedded as ``data-date``.

    Args:
        report: the report.
        today: the day it is made; without it, today in UTC.
    """
    today = today or datetime.now(UTC).date()
    made = day_of(str(report.head.get("date", "")))
    title, colour = _verdict(report)
    stale = made is None or today - made > FRESH
    if stale and colour == GREEN:
        colour = GREY
    waived = report.counts[Status.WAIVED]
    parts = [
        title,
        report.name,
        f"suite {report.head.get('suite', 'unknown')}",
        f"{made:%Y-%m}" if made else "no date",
        *([f"{waived} waived"] if waived else []),
        report.execution,
        *(["stale"] if stale else []),
    ]
    return _svg([clean(p) for p in parts], colour, made)


def _verdict(report: Stored) -> tuple[str, str]:
    if report.bad:
        return "trivet: failing", RED
    if report.cut:
        return "trivet: cut short", RED
    if not report.ok:
        return "trivet: nothing judged", GREY
    mode = str(report.head.get("mode", ""))
    if mode != "certify":
        return f"trivet: {mode or 'unknown'} run, no claim", GREY
    profile, level = str(report.head.get("profile", "")), str(report.head.get("level", ""))
    try:
        found = claim(report.rows, profile, level)
    except ValueError:
        return "trivet: no claim", GREY
    suite = report.head.get("suite")
    if found.holds and suite == found.suite:
        return f"trivet {level}", GREEN
    return f"trivet {level}: not met", RED


def _svg(parts: list[str], colour: str, made: date | None) -> str:
    widths = [_width(p) + 2 * _PAD for p in parts]
    total, x, body = sum(widths), 0, []
    for i, (text, width) in enumerate(zip(parts, widths, strict=True)):
        fill = colour if i == 0 else DARK
        body.append(f'<rect x="{x}" width="{width}" height="{_HEIGHT}" fill="{fill}"/>')
        if i > 1:
            body.append(f'<rect x="{x}" y="4" width="1" height="12" fill="#8c959f"/>')
        body.append(
            f'<text x="{x + width / 2:g}" y="14" text-anchor="middle" '
            f'textLength="{width - 2 * _PAD}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        )
        x += width
    label = " | ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{_HEIGHT}" role="img" '
        f"aria-label={quoteattr(label)} data-date={quoteattr(str(made or ''))}>"
        f"<title>{escape(label)}</title>"
        f'<g font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" fill="#fff">'
        f"{''.join(body)}</g></svg>\n"
    )


def _width(text: str) -> int:
    """Pixels of a text at 11 px, from three classes of letters; the text is stretched to it."""
    each = (10.0 if c in _WIDE or ord(c) > 0x2E80 else 4.2 if c in _NARROW else 6.9 for c in text)
    return max(round(sum(each)), 1)


def day_of(text: str) -> date | None:
    """The day that a text begins with, if it does."""
    found = re.match(r"\d{4}-\d{2}-\d{2}", text)
    try:
        return date.fromisoformat(found.group()) if found else None
    except ValueError:
        return None


def stale(path: Path, *, today: date | None = None) -> str:
    """Why a badge should be made again; empty for one that is fresh.

    Raises:
        ReportError: the file is no badge.
    """
    today = today or datetime.now(UTC).date()
    try:
        root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - the user's own file
    except (OSError, UnicodeDecodeError, ET.ParseError) as error:
        raise ReportError(f"{path}: {error}") from error
    if root.get("data-date") is None:
        raise ReportError(f"{path} carries no date", fix="make it with `trivet-conformance badge`")
    made = day_of(str(root.get("data-date")))
    if made is None:
        return "its run has no date"
    age = (today - made).days
    return f"its run is {age} days old, more than {FRESH.days}" if today - made > FRESH else ""
