"""Constants of a kernel by size: measured rows of a table, else what the author says.

The table is the wheel's. Where the setting ``TRIVET_TUNED`` names a folder, its table of the same
architecture comes first; ``trivet tune`` writes such folders. No call ever measures.

A table is one JSON file an architecture: ``{"schema": 1, "arch": ..., "measured": {device, torch,
triton, date}, "rows": [{"kernel", "key", "rows", "config", "us"}, ...]}``. ``key`` is what a
variant is made for besides the number of rows (dtype, row length, flags); a row of the table holds
for up to ``rows`` rows of the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final

import torch

from trivet import settings
from trivet.errors import ConfigError

SCHEMA: Final = 1

Config = Mapping[str, Any]
"""Constants and compiler options of one variant, by name."""

Key = Mapping[str, str | int | float | bool]

Buckets = tuple[tuple[float, Config], ...]
"""``(most rows, config)`` with rising limits, the last one infinite."""

Trial = Callable[[Key, int, Config, torch.device], tuple[Callable[[], object], int]]
"""``trial(key, rows, config, device) -> (call, bytes moved)``.

``call()`` runs the kernel on inputs that lie on the device already, as often as one likes and
without synchronising, and returns what it computed: a tensor, or several. Meanwhile ``buckets``
gives that config for every call, so that it may simply be a call of the operator. The inputs of
equal ``key`` and ``rows`` are equal: fixed, or drawn from torch's seeded generators.
"""


class Tuned:
    """The choice of one kernel's constants.

    Args:
        name: the kernel's name in tables.
        tables: folder with one ``ARCH.json`` for each architecture that was measured.
        space: ``space(key, rows) -> configs`` that are worth measuring for a call.
        default: ``default(key) -> buckets`` where nothing was measured.
        trial: how ``trivet tune`` calls one config; without it the kernel is not measured.
        keys: typical keys, which ``trivet tune`` measures unless it is told others.
    """

    def __init__(
        self,
        name: str,
        tables: Path,
        *,
        space: Callable[[Key, int], Iterable[Config]],
        default: Callable[[Key], Buckets],
        trial: Trial | None = None,
        keys: Iterable[Key] = (),
    ) -> None:
        self.name, self.tables = name, tables
        self.space, self.default = space, default
        self.trial, self.keys = trial, tuple(keys)
        self._forced: tuple[Config, list[Key]] | None = None

    def buckets(self, arch: str, key: Key) -> Buckets:
        """Configs by number of rows, each with the most rows it is for.

        Raises:
            ConfigError: the table of this architecture is damaged.
        """
        if self._forced is not None:
            config, asked = self._forced
            asked.append(key)
            return ((inf, config),)
        rows = self._rows(arch, key)
        if not rows:
            return self.defaults(arch, key)
        kept = [
            (limit, config)
            for (limit, config), after in zip(rows, (*rows[1:], None), strict=True)
            if after is None or after[1] != config
        ]
        return (*kept[:-1], (inf, kept[-1][1]))

    def measured(self, arch: str, key: Key) -> bool:
        """Whether a table of this architecture has rows for such calls."""
        return bool(self._rows(arch, key))

    def defaults(self, arch: str, key: Key) -> Buckets:
        """What holds where nothing was measured; a subclass may decide by architecture."""
        del arch
        return self.default(key)

    def candidates(self, arch: str, key: Key, rows: int) -> Iterable[Config]:
        """Configs that are worth measuring; a subclass may decide by architecture."""
        del arch
        return self.space(key, rows)

    def folder(self, arch: str) -> Path | None:
        """Where the wheel's table of an architecture lies, if anywhere."""
        del arch
        return self.tables

    @contextmanager
    def forced(self, config: Config) -> Iterator[list[Key]]:
        """Gives one config for every call, while it is measured; not for serving processes.

        The list has the keys that were asked for.
        """
        asked: list[Key] = []
        self._forced = config, asked
        try:
            yield asked
        finally:
            self._forced = None

    def _rows(self, arch: str, key: Key) -> Buckets:
        """Rows of the user's table where there are any, else of the wheel's."""
        at, own = (self.name, _text(key)), settings.read().tuned
        rows = _table(own / f"{arch}.json").get(at, ()) if own else ()
        if rows:
            return rows
        folder = self.folder(arch)
        return _table(folder / f"{arch}.json").get(at, ()) if folder else ()


def config_at(buckets: Buckets, rows: int) -> Config:
    """The config for a number of rows."""
    return next(config for limit, config in buckets if rows <= limit)


def _text(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)


@cache
def _table(file: Path) -> dict[tuple[str, str], Buckets]:
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
