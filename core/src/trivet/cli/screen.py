"""Text for people: tables and paragraphs that fit the terminal, and plain text in a pipe.

Nothing is cut: what is wider than its column goes on in the next line.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.containers import Lines
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

STYLES: Final = {
    "found": "green", "yes": "green", "runs": "bold green", "guarded": "yellow", "shadowed": "dim",
    "no": "red", "incompatible": "red", "import_failed": "red", "raised": "red", "broken": "red",
}  # fmt: skip
"""Styles of words that are an answer; a word is never told by its colour alone."""

_NAME_WIDTH: Final = 30
_SPACES: Final = re.compile(r"(\s+)")
_SEPARATED: Final = re.compile(r".*[/\\,;=]")


class _Words(Text):
    """Text of which a path that is wider than its column goes on behind a separator."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """The lines of the text at a width."""
        text = Text(_broken(self.plain, width), style=self.style, overflow=self.overflow)
        return text.wrap(console, width, **how)


def _broken(text: str, width: int) -> str:
    """The text with line breaks behind separators of words that are wider than a line."""
    found, width = [], max(1, width)
    for part in _SPACES.split(text):
        word = part
        while len(word) > width:
            match = _SEPARATED.match(word[:width])
            end = match.end() if match else width
            found.append(f"{word[:end]}\n")
            word = word[end:]
        found.append(word)
    return "".join(found)


class Screen:
    """Standard output, at the width of the terminal (80 in a pipe, or ``COLUMNS``)."""

    def __init__(self) -> None:
        self._console = Console(
            color_system=None if os.environ.get("NO_COLOR") else "auto",
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._started = False

    def heading(self, text: str) -> None:
        """A title, with a blank line before it unless it is the first."""
        if self._started:
            click.echo()
        self._print(Text(text, style="bold"))

    def line(self, text: str, indent: int = 0) -> None:
        """A paragraph."""
        self._print(Padding(_Words(text, overflow="fold"), (0, 0, 0, indent)))

    def code(self, text: str) -> None:
        """Source text, line by line as it is."""
        for line in text.rstrip("\n").split("\n"):
            click.echo(f"  {line}".rstrip())

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Labels and what they mean; rows without text are left out."""
        self.table((), [row for row in rows if row[1]])

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        flexible: Sequence[int] = (-1,),
    ) -> None:
        """Rows under column titles.

        Args:
            columns: titles; none for a table without.
            rows: cells as text.
            flexible: columns that hold sentences or lists: they share what width the names leave.
        """
        if not rows:
            return
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns),
            header_style="dim",
        )  # fmt: skip
        loose = {position % len(rows[0]) for position in flexible}
        for position in range(len(rows[0])):
            title = columns[position] if columns else ""
            widest = max([len(title), *(_widest(row[position]) for row in rows)])
            fixed = None if position in loose else min(widest, _NAME_WIDTH)
            table.add_column(title, width=fixed, overflow="fold")
        for row in rows:
            table.add_row(*(_Words(cell, style=STYLES.get(cell, "")) for cell in row))
        self._print(Padding(table, (0, 0, 0, 2)))

    def _print(self, what: RenderableType) -> None:
        self._started = True
        with self._console.capture() as captured:
            self._console.print(what)
        for line in captured.get().rstrip("\n").split("\n"):
            click.echo(line.rstrip())


def _widest(text: str) -> int:
    return max(map(len, text.split("\n")))


def emit(document: Mapping[str, object]) -> None:
    """Writes a document as JSON; what is no plain value becomes text, no number becomes null."""
    click.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def printable(text: str) -> str:
    """Text of somebody else in one line that a terminal only shows: the rest as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size_text(n: int | None) -> str:
    """Bytes in the largest binary unit that leaves a number of at least one; empty for None."""
    if n is None:
        return ""
    value, units = float(n), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document; its keys are below."
)


def key_page(keys: Mapping[str, str]) -> str:
    """The keys of a JSON document, for the end of a help page."""
    width = max(map(len, keys)) + 2
    return "\b\nKeys of --json:\n" + "\n".join(f"  {k:{width}}{v}" for k, v in keys.items())
