"""What several commands share: the plugin, and a bar of what is done."""

from __future__ import annotations

from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trivet.contracts import Execution

PLUGIN = click.option(
    "--plugin",
    required=True,
    metavar="NAME|PATH",
    help="Installed plugin, ./file.py, ./package or ./file.py:attribute; 'reference' is core.",
)
_RUN: Final = (Execution.HARDWARE, Execution.EMULATED, Execution.INTERPRETED)
EXECUTION = click.option(
    "--execution",
    type=click.Choice([word.value for word in _RUN]),
    callback=lambda _, __, word: word or "",
    help="What the device must be; a plugin that offers such a one only when asked is asked.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def progress_bar(what: str = "", total: int | None = None) -> Progress:
    """A bar with one task, on the error stream: standard output carries the answer alone."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    return bar
