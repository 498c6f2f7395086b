"""Constants of a kernel by size: measured rows of a table in the wheel, else what the author says.

A table is one JSON file an architecture: ``{"schema": 1, "arch": ..., "measured": {device, torch,
triton, date}, "rows": [{"kernel", "key", "rows", "config", "us"}, ...]}``. ``key`` is what a
variant is made for besides the number of rows (dtype, row length, flags); a row of the table holds
for up to ``rows`` rows of the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final

from trivet.errors import ConfigError

SCHEMA: Final = 1

Config = Mapping[str, Any]
"""Constants and compiler options of one variant, by name."""

Key = Mapping[str, str | int | float | bool]

Buckets = tuple[tuple[float, Config], ...]
"""``(most rows, config)`` with rising limits, the last one infinite."""


class Tuned:
    """The choice of one kernel's constants.

    Args:
        name: the kernel's name in tables.
        tables: folder with one ``ARCH.json`` for each architecture that was measured.
        space: ``space(key, rows) -> configs`` that are worth measuring for a call.
        default: ``default(key) -> buckets`` where nothing was measured.
    """

    def __init__(
        self,
        name: str,
        tables: Path,
        *,
        space: Callable[[Key, int], Iterable[Config]],
        default: Callable[[Key], Buckets],
    ) -> None:
        self.name, self.tables = name, tables
        self.space, self.default = space, default

    def buckets(self, arch: str, key: Key) -> Buckets:
        """Configs by number of rows, each with the most rows it is for.

        Raises:
            ConfigError: the table of this architecture is damaged.
        """
        rows = _table(self.tables / f"{arch}.json").get((self.name, _text(key)), ())
        if not rows:
            return self.default(key)
        kept = [
            (limit, config)
            for (limit, config), after in zip(rows, (*rows[1:], None), strict=True)
            if after is None or after[1] != config
        ]
        return (*kept[:-1], (inf, kept[-1][1]))

    def measured(self, arch: str, key: Key) -> bool:
        """Whether a table of this architecture has rows for such calls."""
        return (self.name, _text(key)) in _table(self.tables / f"{arch}.json")


def _text(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)


@cache
def _table(file: Path) -> dict[tuple[str, str], tuple[tuple[float, Config], ...]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            msg = f"{file} has schema {document['schema']!r}, this version reads {SCHEMA}"
            raise ConfigError(msg, fix="tune again with this version")
        found: dict[tuple[str, str], list[tuple[float, Config]]] = {}
        for row in document["rows"]:
            at = (str(row["kernel"]), _text(row["key"]))
            found.setdefault(at, []).append((int(row["rows"]), dict(row["config"])))
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{file} is no table of tuned constants: {type(error).__name__}: {error}"
        raise ConfigError(msg, fix="reinstall the package, or tune again") from error
    return {at: tuple(sorted(rows, key=lambda r: r[0])) for at, rows in found.items()}
