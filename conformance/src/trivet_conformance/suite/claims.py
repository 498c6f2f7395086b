"""What a report may claim: every line of a frozen must-pass list, and nothing that failed.

A line is a cell ``family/operator/dtype``: one provider of the plugin passes all of its checks,
and at least one passed. Lines of the model family are single checks without their provider.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from trivet_conformance.calls.profiles import profile as profile_of
from trivet_conformance.result import BAD, Status
from trivet_conformance.suite.levels import ASYNCHRONOUS, LEVELS
from trivet_conformance.suite.version import SUITE

GOOD: Final = frozenset({Status.PASS, Status.REFUSED_OK})
UNTRIED: Final = frozenset({Status.NOT_SUPPORTED, Status.NOT_RUN})
MODEL: Final = "model"
CERTIFY: Final = "certify"


@dataclass(frozen=True)
class Claim:
    """The answer to: may this plugin say that it conforms?

    Args:
        suite: version of the suite.
        profile: name of the profile.
        level: the level.
        holds: whether every line is satisfied and nothing failed, in a run that may certify.
        missing: lines of the must-pass list that are not satisfied.
        failed: ids of checks that make a run fail.
        optional_not_claimed: cells of the profile that the plugin may and does leave out.
        hash: SHA-256 of the must-pass list.
        why_not: why the run cannot certify, whatever its results; empty where it can.
    """

    suite: str
    profile: str
    level: str
    holds: bool
    missing: tuple[str, ...]
    failed: tuple[str, ...]
    optional_not_claimed: tuple[str, ...]
    hash: str
    why_not: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "suite": self.suite,
            "profile": self.profile,
            "level": self.level,
            "holds": self.holds,
            "missing": list(self.missing),
            "failed": list(self.failed),
            "optional_not_claimed": list(self.optional_not_claimed),
            "mustpass_sha256": self.hash,
            "why_not": self.why_not,
        }


def mustpass_text(profile: str, level: str, suite: str = SUITE) -> str:
    """The frozen list as it is stored; empty for ``L0``, which wants no cell.

    Raises:
        ValueError: that version of the suite has no such list.
    """
    if level == LEVELS[0]:
        return ""
    path = files("trivet_conformance").joinpath(
        "suite", "mustpass", suite, f"{profile}.{level}.txt"
    )
    if not path.is_file():
        msg = f"suite {suite} has no must-pass list for {profile}, {level}"
        raise ValueError(msg)
    return path.read_text("utf-8")


def mustpass(profile: str, level: str, suite: str = SUITE) -> tuple[str, ...]:
    """The lines of a frozen list.

    Raises:
        ValueError: that version of the suite has no such list.
    """
    text = mustpass_text(profile, level, suite)
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def digest(text: str) -> str:
    """The SHA-256 of a list."""
    return hashlib.sha256(text.encode()).hexdigest()


def line_of(row: Mapping[str, Any]) -> str:
    """The must-pass line to which a result belongs."""
    family, op = str(row["family"]), str(row["operator"])
    if family == MODEL:
        case = str(row["id"]).removeprefix(f"{family}/{op}/{row['provider']}/")
        return f"{family}/{op}/{case}"
    return f"{family}/{op}/{row['dtype'] or '-'}"


def satisfied(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Lines of which one provider passes every check, and at least one passed."""
    cells: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["kind"] == "result":
            found = cells.setdefault((line_of(row), str(row["provider"])), set())
            found.add(str(row["status"]))
    return {line for (line, _), have in cells.items() if have & GOOD and have <= GOOD | UNTRIED}


def claim(rows: Iterable[Mapping[str, Any]], profile: str, level: str) -> Claim:
    """What the rows of a report allow to say.

    Args:
        rows: the lines of a report, the head among them.
        profile: name of the profile.
        level: the level.

    Raises:
        ValueError: there is no such profile, level or list.
    """
    rows, own = list(rows), profile_of(profile)
    text = mustpass_text(profile, level)
    head = next((r for r in rows if r["kind"] == "run"), {})
    results = [r for r in rows if r["kind"] == "result"]
    have = satisfied(results)
    host = _host(head)
    missing = tuple(
        line
        for line in mustpass(profile, level)
        if line not in have and not (host and line.partition("/")[0] in ASYNCHRONOUS)
    )
    failed = tuple(str(r["id"]) for r in results if r["status"] in BAD)
    why_not = _why_not(head)
    if not why_not and not head.get("implementations"):
        why_not = "the plugin has no implementation for this device"
    return Claim(
        suite=SUITE,
        profile=profile,
        level=level,
        holds=not (missing or failed or why_not),
        missing=missing,
        failed=failed,
        optional_not_claimed=_left_out(own.mandatory, own.optional, own, have),
        hash=digest(text),
        why_not=why_not,
    )


def _host(head: Mapping[str, Any]) -> bool:
    """Whether a report's device is the host, whose calls return when the work is done."""
    device = head.get("device") or {}
    return str(device.get("torch_type")) == "cpu"


def _why_not(head: Mapping[str, Any]) -> str:
    mode = head.get("mode")
    if not head:
        return "the report does not say how it was made"
    if mode == "quick":
        return "not certifiable: quick grids are a first look"
    if mode != CERTIFY:
        return f"not certifiable: made with --mode {mode}, not --mode {CERTIFY}"
    if not isinstance(head.get("seed"), int):
        return "not certifiable: the report names no seed"
    return ""


def _left_out(
    mandatory: Iterable[str], optional: Iterable[str], own: Any, have: set[str]
) -> tuple[str, ...]:
    """``operator/dtype`` of what a profile lets out and no value check of the report passed."""
    cells = [f"{op}/{d}" for op in mandatory for d in own.optional_dtypes]
    cells += [f"{op}/{d}" for op in optional for d in (*own.dtypes, *own.optional_dtypes)]
    return tuple(cell for cell in cells if f"value/{cell}" not in have)
