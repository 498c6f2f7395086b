"""Locks of groups: what one would choose, so that another can be held to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trivet.errors import ConfigError, LockMismatch
from trivet.selection.differences import differences
from trivet.selection.lock import digest

KIND: Final = "trivet group"
SCHEMA: Final = 1

Lock = Mapping[str, Any] | str | Path | None

_AGAIN: Final = "write it again: the lock property of a group, as JSON"


def given(lock: Lock) -> Mapping[str, Any] | None:
    """A lock as it is given: plain values, or the file that has them as JSON.

    Raises:
        ConfigError: the file cannot be read.
    """
    if lock is None or isinstance(lock, Mapping):
        return lock
    try:
        found = json.loads(Path(lock).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"lock file {lock} cannot be read: {error}", fix=_AGAIN) from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{lock}: this is no lock of a group", fix=_AGAIN)
    return found


def made(document: Mapping[str, Any]) -> dict[str, Any]:
    """The lock of what decides every choice of a group."""
    body = {"kind": KIND, "schema": SCHEMA, **document}
    return {**body, "digest": digest(body)}


def verify(locked: Mapping[str, Any], document: Mapping[str, Any], where: str) -> None:
    """Compare a lock with what would be chosen now.

    Raises:
        ConfigError: it is no lock of a group, or was changed by hand.
        LockMismatch: lists every field that differs, with both values.
    """
    if locked.get("kind") != KIND or locked.get("schema") != SCHEMA:
        raise ConfigError(f"{where}: this is no lock of a group", fix=_AGAIN)
    if locked.get("digest") != digest(locked):
        raise ConfigError(f"{where}: the lock's digest does not fit its content", fix=_AGAIN)
    now = made(document)
    then, later = ({k: v for k, v in d.items() if k != "digest"} for d in (locked, now))
    fields = list(differences(then, later, _said))
    if fields:
        msg = f"{where}: the lock and this process differ in {len(fields)} field(s)"
        raise LockMismatch(msg, fields=fields, fix="restore what changed, or write a new lock")


def _said(_path: str, then: Any, now: Any) -> str:
    return f"locked {_names(then)}, now {_names(now)}"


def _names(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_names(row) for row in value) or "nobody"
    if isinstance(value, Mapping):
        return f"{value.get('provider')} ({value.get('version')}: {_names(value.get('domain'))})"
    return str(value)
