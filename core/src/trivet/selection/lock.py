"""Lock files: what a plan chose, so that it can be checked and reproduced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from trivet.errors import ConfigError, LockMismatch
from trivet.selection.choose import Choice
from trivet.selection.differences import differences, words
from trivet.selection.facts import plain
from trivet.settings import Settings

SCHEMA: Final = 1

_AGAIN: Final = "write it again: trivet plan --save FILE"


def site_document(choice: Choice, mode: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """One site: operator, facts and, in order, each provider that may run, with its digest.

    A dim that is a step variable stands among the facts, with the variable's name.
    """
    op = choice.operator
    return {
        "op": f"{op.name}@{op.version}",
        "form": choice.form,
        "mode": mode,
        "facts": choice.facts.to_json() | dict(variables),
        "choices": [
            {
                "provider": arm.provider,
                "digest": arm.implementation.digest,
                "when": [list(map(plain, t.to_json())) for t in arm.terms],
            }
            for arm in choice.arms
        ],
    }


def digest(document: Mapping[str, Any]) -> str:
    """Sixteen hex digits over everything but the digest itself."""
    body = {k: v for k, v in document.items() if k != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def save(document: Mapping[str, Any], path: Path) -> None:
    """Writes a lock with sorted keys, whole or not at all."""
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def load(path: Path) -> dict[str, Any]:
    """Reads a lock file.

    Raises:
        ConfigError: the file is missing, is no lock, has another schema, or was changed by hand.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = f"lock file {path} cannot be read: {error}"
        raise ConfigError(msg, fix=_AGAIN) from error
    return dict(checked(found, str(path)))


def given(
    lock: str | Path | Mapping[str, Any] | Literal[False] | None, settings: Settings
) -> Mapping[str, Any] | None:
    """The document that a plan must agree with, from what its caller and the settings say.

    Raises:
        ConfigError: what was given is no lock.
    """
    if lock is False:
        return None
    if isinstance(lock, Mapping):
        return checked(lock, "the lock given")
    if lock is None:
        return load(settings.lock) if settings.lock else None
    typed = isinstance(lock, (str, Path))  # not every caller is checked
    if typed and lock != "":
        return load(Path(lock))
    msg = f"lock={lock!r} is no lock"
    raise ConfigError(msg, fix="a file, a document, None for TRIVET_LOCK, or False for none")


def order(locked: Mapping[str, Any] | None, site: str) -> dict[str, tuple[str, ...]]:
    """The order list by which a site chooses what was locked; empty without a lock."""
    document = ((locked or {}).get("sites") or {}).get(site)
    if not document:
        return {}
    name = str(document["op"]).partition("@")[0]
    return {name: tuple(c["provider"] for c in document["choices"])}


def checked(found: Any, what: str) -> Mapping[str, Any]:
    """A document that is a whole lock.

    Raises:
        ConfigError: it is no lock, has another schema, or was changed by hand.
    """
    if not isinstance(found, Mapping) or found.get("schema") != SCHEMA:
        problem = f" is no trivet lock of schema {SCHEMA}"
    elif found.get("digest") != digest(found):
        problem = ": its digest does not fit its content; it was edited or cut short"
    elif not _has_choices(found.get("sites")):
        problem = ": its sites are not what trivet writes"
    else:
        return found
    raise ConfigError(what + problem, fix=_AGAIN)


def _has_choices(sites: object) -> bool:
    """Whether every site names its operator and its providers."""
    return isinstance(sites, Mapping) and all(
        isinstance(site, Mapping)
        and isinstance(site.get("op"), str)
        and isinstance(site.get("choices"), list)
        and all(isinstance(c, Mapping) and isinstance(c.get("provider"), str)
                for c in site["choices"])
        for site in sites.values()
    )  # fmt: skip


def verify(locked: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compares a lock with what is chosen now.

    Raises:
        LockMismatch: lists every field that differs, with both values.
    """
    then, later = ({k: v for k, v in d.items() if k != "digest"} for d in (locked, now))
    fields = list(differences(then, later, words))
    if fields:
        msg = f"the lock and this process differ in {len(fields)} field(s)"
        raise LockMismatch(msg, fields=fields, fix="restore what changed, or write a new lock")
