"""Figures of the memory leg: what adaptors, pools, tiers and sleep cost, what pools reserve."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
from report import picture, publish

PARTS = ("memory_adaptors", "memory_blocks", "memory_replay", "memory_tiers", "memory_prefix")
"""Files beside this one; each has ``rows(*, quick)``."""


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(path_type=Path), default=None)
@click.option("--plot", "image", type=click.Path(path_type=Path), default=None)
@click.option("--quick", is_flag=True, help="Fewer rounds, to see that it works.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these.")
def main(target: Path | None, image: Path | None, quick: bool, parts: tuple[str, ...]) -> None:
    """Measures, prints the figures, and writes and draws them where files are named."""
    rows = [
        row for part in parts or PARTS for row in importlib.import_module(part).rows(quick=quick)
    ]
    publish("memory", rows, target)
    if image:
        picture(image, "memory: microseconds a pair", [r for r in rows if r.unit == "us"])


if __name__ == "__main__":
    main()
