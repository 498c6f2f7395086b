"""Reads the metadata files of one distribution; what cannot be read becomes a text.

Anybody's distribution may be damaged, and a damaged one must cost nothing but itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import PurePath

from trivet.plugins.describe import said, shown

Points = dict[str, list[tuple[str, str]]]
"""Group -> (name, value) of its entry points, in the order of the file."""


@dataclass(frozen=True)
class Head:
    """Who a distribution says it is; ``damage`` when it cannot."""

    name: str
    version: str
    author: str
    damage: str


def read_points(dist: Distribution) -> tuple[str, str]:
    """The text of ``entry_points.txt``, and why it cannot be trusted; empty when it can."""
    try:
        return dist.read_text("entry_points.txt") or "", ""
    except UnicodeDecodeError as error:
        damage = f"its entry_points.txt is not UTF-8 (byte {error.start})"
        return error.object.decode("utf-8", "replace"), damage
    except OSError:  # nothing says that it concerns us
        return "", ""


def parse_points(text: str, groups: Collection[str]) -> tuple[Points, str]:
    """The entry points of some groups, and what is wrong with their lines; empty when nothing."""
    found: Points = {}
    group, damage = "", ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
            if group in groups:
                found.setdefault(group, [])
        elif group in groups:
            name, _, value = (part.strip() for part in line.partition("="))
            if name and value:
                found[group].append((name, value))
            else:
                wrong = f"line {number} of its entry_points.txt, {shown(line)}, is not NAME = VALUE"
                damage = damage or wrong
    return found, damage


def read_head(dist: Distribution) -> Head:
    """Name, version and author; those of the folder's name when the file cannot be read."""
    name = version = author = damage = ""
    try:
        fields = dist.metadata
        name, version, author = (
            str((key in fields and fields[key]) or "") for key in ("Name", "Version", "Author")
        )
        damage = "" if name else "its METADATA gives no name"
    except Exception as error:  # noqa: BLE001 - a damaged file, reported as this distribution's
        damage = f"its METADATA cannot be read: {said(error)}"
    if damage:
        folder = PurePath(str(getattr(dist, "_path", ""))).stem
        name, _, version = folder.partition("-")
    return Head(name or "a distribution without a name", version or "unknown", author, damage)
