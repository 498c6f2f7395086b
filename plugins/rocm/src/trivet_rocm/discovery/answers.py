"""Reads a record of answers by type: what is missing, damaged or refused is None or empty.

A record is plain JSON. An answer that was refused is ``{"error": NAME}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Record: TypeAlias = Mapping[str, Any]

NOTHING: Final[Record] = {}
_SHOWN: Final = 80


def section(record: object, key: str) -> Record:
    """A mapping inside a record; an empty one when it is not there."""
    found = record.get(key) if isinstance(record, Mapping) else None
    return found if isinstance(found, Mapping) else NOTHING


def rows(record: Record, key: str) -> list[Record]:
    """A list of mappings inside a record; what is none keeps its place as an empty one."""
    found = record.get(key)
    members = found if isinstance(found, list) else []
    return [row if isinstance(row, Mapping) else NOTHING for row in members]


def text(record: Record, key: str) -> str:
    """A printable text of bearable length; empty when it is not there."""
    found = record.get(key)
    if not isinstance(found, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in found.strip())[:_SHOWN]


def number(record: Record, key: str) -> int:
    """A number of 0 or more; 0 when it is not there."""
    found = record.get(key)
    return found if type(found) is int and found >= 0 else 0


def amount(record: Record, key: str) -> int | None:
    """A number above zero, or None: nothing of a GPU has a size of zero."""
    return number(record, key) or None


def refused(record: Record, key: str) -> str:
    """The name of the error in place of an answer; empty when it was answered."""
    return text(section(record, key), "error")
