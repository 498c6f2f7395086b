"""Reads a record of answers by type: what is missing, damaged or an error is None or empty.

A record is plain JSON. An answer that was refused is ``{"error": NAME}`` with the name that NVML
has for it.
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
    """A list of mappings inside a record, others in it as empty ones so that positions stay."""
    found = record.get(key)
    members = found if isinstance(found, list | tuple) else []
    return [row if isinstance(row, Mapping) else NOTHING for row in members]


def text(record: Record, key: str) -> str:
    """A text, printable and of bearable length; empty when it is not there."""
    found = record.get(key)
    if not isinstance(found, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in found.strip())[:_SHOWN]


def count(record: Record, key: str) -> int | None:
    """A number that is not negative, or None."""
    found = record.get(key)
    return found if type(found) is int and found >= 0 else None


def amount(record: Record, key: str) -> int | None:
    """A number above zero, or None: nothing of a GPU has a size of zero."""
    return count(record, key) or None


def pair(record: Record, key: str) -> tuple[int, int] | None:
    """Two numbers, such as major and minor, or None."""
    found = record.get(key)
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    first, second = found
    if type(first) is not int or type(second) is not int or min(first, second) < 0:
        return None
    return first, second


def error(record: Record, key: str) -> str:
    """The name of the error that stands in place of an answer; empty when it was answered."""
    return text(section(record, key), "error")
