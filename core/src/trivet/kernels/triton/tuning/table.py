"""Writes tables of tuned constants: rows of a run take the places of older ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trivet.errors import ConfigError
from trivet.kernels.triton.tuned import SCHEMA
from trivet.kernels.triton.tuning.kept import write

Row = Mapping[str, Any]


def merge(path: Path, arch: str, measured: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Puts rows into a table, which is made if it is not there.

    A row without time (``us`` is None) only fills a place that has no row. Rows that stay and were
    measured under something else than ``measured`` keep that beside them.

    Raises:
        ConfigError: what is there is no table of this architecture.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        before = _read(path, arch)
        under = before["measured"]
        found = {_place(row): dict(row) for row in before["rows"]}
        if _what(under) != _what(measured):
            for old in found.values():
                old.setdefault("measured", under)
        for row in rows:
            if row["us"] is not None or _place(row) not in found:
                found[_place(row)] = dict(row)
        document = {
            "schema": SCHEMA,
            "arch": arch,
            "measured": dict(measured),
            "rows": [found[place] for place in sorted(found)],
        }
        write(path, document)


def _place(row: Row) -> tuple[str, str, int]:
    return str(row["kernel"]), json.dumps(row["key"], sort_keys=True), int(row["rows"])


def _what(measured: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in measured.items() if name != "date"}


def _read(path: Path, arch: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"measured": {}, "rows": []}
    except ValueError as error:
        msg = f"{path} is no table of tuned constants: {error}"
        raise ConfigError(msg, fix="remove it, or give --out another folder") from error
    if (found.get("schema"), found.get("arch")) != (SCHEMA, arch):
        msg = f"{path} is of schema {found.get('schema')!r} and for {found.get('arch')!r}"
        raise ConfigError(msg, fix="give --out another folder")
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes from the table between its reading and its writing."""
    import fcntl  # where Triton runs there is one

    with path.with_name(f".{path.name}.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
