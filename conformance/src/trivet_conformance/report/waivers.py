"""Waivers: known failures, each with a reason, an owner, an issue and an end."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from trivet_conformance.report.errors import WaiverError
from trivet_conformance.result import Finding, Result, Status
from trivet_conformance.suite.version import SUITE

FILE: Final = "trivet-waivers.toml"
TODO: Final = "TODO"
LONGEST: Final = timedelta(days=180)
KINDS: Final = {
    "xfail": frozenset({Status.FAIL, Status.CRASH, Status.TIMEOUT}),
    "skip": frozenset({Status.CRASH, Status.TIMEOUT}),
}
"""What each kind may waive. An ``error`` is a fault of the kit or the declaration: nobody's."""

_TEXTS: Final = ("id", "kind", "reason", "issue", "owner", "suite")
_DATES: Final = ("granted", "expires")
_PASSED: Final = frozenset({Status.PASS, Status.REFUSED_OK})


@dataclass(frozen=True)
class Waiver:
    """One entry; ``id`` is a whole id, or the start of some with one ``*`` behind it."""

    id: str
    kind: str
    reason: str
    issue: str
    owner: str
    suite: str
    granted: date
    expires: date
    devices: tuple[str, ...] = ()

    def covers(self, result: str) -> bool:
        """Whether a result's id is meant."""
        if self.id.endswith("*"):
            return result.startswith(self.id[:-1])
        return result == self.id

    def here(self, device: Mapping[str, Any], suite: str) -> bool:
        """Whether it is meant for this device (``kind`` or ``kind:arch``) and suite."""
        kind = str(device.get("kind", ""))
        names = {kind, *(f"{kind}:{arch}" for arch in device.get("arch") or ())}
        right = not self.devices or not names.isdisjoint(self.devices)
        return right and SpecifierSet(self.suite).contains(suite, prereleases=True)


@dataclass
class Waivers:
    """The entries that are in force for one device, and which of them were needed.

    Args:
        entries: the entries.
        where: the file, for messages.
    """

    entries: tuple[Waiver, ...] = ()
    where: str = FILE
    _used: set[str] = field(default_factory=set)

    def find(self, result: str) -> Waiver | None:
        """The entry for an id: an exact one before one with a star; marks it as used."""
        found = [w for w in self.entries if w.covers(result)]
        self._used.update(w.id for w in found)
        return max(found, key=lambda w: (not w.id.endswith("*"), len(w.id)), default=None)

    def judge(self, result: Result) -> Result:
        """A result as the waivers see it; its finding is kept, status and reason may change."""
        status, reason = self._verdict(result.id, result.status, result.finding.reason)
        if status is result.status:
            return result
        finding: Finding = replace(result.finding, status=status, reason=reason)
        return replace(result, finding=finding)

    def _verdict(self, result: str, status: Status, reason: str) -> tuple[Status, str]:
        waiver = self.find(result)
        if waiver is None or status in {Status.WAIVED, Status.XPASS}:
            return status, reason
        if status in KINDS[waiver.kind]:
            why = f"{waiver.reason} ({waiver.issue}, until {waiver.expires}); {status}: {reason}"
            return Status.WAIVED, why
        if status in _PASSED:
            return Status.XPASS, f"it passes; take {waiver.id!r} out of {self.where}"
        return status, reason

    def unmatched(self) -> tuple[str, ...]:
        """Ids of entries that no result of the run had."""
        return tuple(w.id for w in self.entries if w.id not in self._used)

    def check_all_used(self) -> None:
        """Wants every entry to have met a result; call it after a run that was not narrowed.

        Raises:
            WaiverError: an entry matches nothing.
        """
        if left := self.unmatched():
            what = f"{self.where}: no check has the id of {', '.join(map(repr, left))}"
            raise WaiverError(what, fix="correct the id, or delete the entry")


def load(
    path: Path,
    *,
    device: Mapping[str, Any] | None = None,
    suite: str = SUITE,
    today: date | None = None,
) -> Waivers:
    """Reads a file and gives the entries that are in force.

    Args:
        path: the file.
        device: plain values of the device that runs; without it, every device.
        suite: version of the suite that runs.
        today: the day to judge dates by; without it, today in UTC.

    Raises:
        WaiverError: the file or an entry is malformed, or an entry has expired.
    """
    today = today or datetime.now(UTC).date()
    entries: list[Waiver] = []
    for i, raw in enumerate(read(path), 1):
        where = f"{path}, entry {i} ({raw.get('id', 'without an id')!s})"
        waiver = _entry(raw, where)
        _in_force(waiver, where, today)
        if any(w.id == waiver.id and w.devices == waiver.devices for w in entries):
            raise WaiverError(f"{where}: the id stands there twice")
        entries.append(waiver)
    kept = tuple(w for w in entries if device is None or w.here(device, suite))
    return Waivers(kept, str(path))


def read(path: Path) -> list[dict[str, Any]]:
    """The raw entries of a file.

    Raises:
        WaiverError: it cannot be read, is no TOML, or holds something else.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WaiverError(f"{path}: {error}") from error
    if unknown := sorted(document.keys() - {"waiver"}):
        raise WaiverError(f"{path}: unknown key {', '.join(unknown)}; entries are [[waiver]]")
    entries = document.get("waiver", [])
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise WaiverError(f"{path}: waiver must be an array of tables", fix="write [[waiver]]")
    return entries


def _entry(raw: Mapping[str, Any], where: str) -> Waiver:
    known = (*_TEXTS, *_DATES, "devices")
    if unknown := sorted(raw.keys() - set(known)):
        what = f"{where}: unknown key {', '.join(unknown)}"
        raise WaiverError(what, fix=f"known are {', '.join(known)}")
    if missing := [k for k in (*_TEXTS, *_DATES) if k not in raw]:
        raise WaiverError(f"{where}: {', '.join(missing)} is missing")
    for key in _TEXTS:
        value = raw[key]
        if not isinstance(value, str) or not value.strip():
            raise WaiverError(f"{where}: {key} must be a text that says something")
        if value.strip().startswith(TODO):
            raise WaiverError(f"{where}: {key} still says {TODO}", fix="a person must fill it in")
    for key in _DATES:
        if not isinstance(raw[key], date) or isinstance(raw[key], datetime):
            raise WaiverError(f"{where}: {key} must be a date", fix="write it as 2026-11-30")
    devices = raw.get("devices", [])
    if not isinstance(devices, list) or not all(isinstance(d, str) for d in devices):
        raise WaiverError(f"{where}: devices must be a list of texts, kind or kind:arch")
    return Waiver(**{**raw, "devices": tuple(devices)})


def _in_force(waiver: Waiver, where: str, today: date) -> None:
    if waiver.kind not in KINDS:
        raise WaiverError(f"{where}: kind {waiver.kind!r} is none of {', '.join(KINDS)}")
    if "*" in waiver.id[:-1] or waiver.id == "*":
        raise WaiverError(f"{where}: an id may end with one *, behind something")
    if not waiver.issue.startswith(("https://", "http://")):
        raise WaiverError(f"{where}: issue must be a link")
    try:
        SpecifierSet(waiver.suite)
    except InvalidSpecifier as error:
        fix = "write it as >=1.0,<2"
        raise WaiverError(f"{where}: suite {waiver.suite!r} is no specifier", fix=fix) from error
    if waiver.granted > today:
        raise WaiverError(f"{where}: granted on {waiver.granted}, a day to come")
    if not timedelta() < waiver.expires - waiver.granted <= LONGEST:
        what = f"{where}: it must expire within {LONGEST.days} days of {waiver.granted}"
        raise WaiverError(what, fix="a waiver is repaired or granted again, never for ever")
    if waiver.expires < today:
        raise WaiverError(
            f"{where}: expired on {waiver.expires}",
            fix=f"repair it, or let {waiver.owner} grant it again",
        )
