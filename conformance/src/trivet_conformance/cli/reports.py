"""Commands over reports that are there: html, badge, diff, merge, expect."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from trivet_conformance.cli import claiming
from trivet_conformance.cli.cells import wrapped
from trivet_conformance.report import stored
from trivet_conformance.report.badge import badge as badge_of
from trivet_conformance.report.badge import stale
from trivet_conformance.report.compare import compare
from trivet_conformance.report.errors import ReportError
from trivet_conformance.report.expect import expect as expect_of
from trivet_conformance.report.merging import merge as merge_of
from trivet_conformance.report.page import difference_rows, page
from trivet_conformance.report.stored import load
from trivet_conformance.report.waivers import FILE

FOLDER = click.Path(path_type=Path, file_okay=False)
TARGET = click.Path(path_type=Path, dir_okay=False)


class Unusable(click.ClickException):
    """A report or waiver file that cannot be used."""

    exit_code = 2


def output(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``-o FILE``."""
    text = "Where it is written."
    return click.option("-o", "--output", "out", type=TARGET, default=Path(default),
                        show_default=True, help=text)  # fmt: skip


@contextmanager
def told() -> Iterator[None]:
    """Turns what is wrong with a report into a message and exit status 2."""
    try:
        yield
    except (ReportError, OSError) as error:
        raise Unusable(str(error)) from error


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--against", type=FOLDER, help="An earlier report to compare with.")
@click.option("-o", "--output", "out", type=TARGET, help="The page.  [default: DIR/report.html]")
def html(folder: Path, against: Path | None, out: Path | None) -> None:
    """Writes a report as one page that needs no network."""
    out = out or folder / "report.html"
    with told():
        text = page(load(folder), load(against) if against else None)
        out.write_text(text, encoding="utf-8")
    click.echo(out)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@output("trivet.svg")
@click.option("--check", is_flag=True, help="SOURCE is a badge: exit 1 if it is out of date.")
def badge(source: Path, out: Path, *, check: bool) -> None:
    """Writes the badge of a report; grey for quick runs and after 180 days."""
    with told():
        if check:
            why = stale(source)
            click.echo(f"{source}: {why or 'fresh'}")
            sys.exit(1 if why else 0)
        out.write_text(badge_of(load(source)), encoding="utf-8")
    click.echo(out)


@click.command()
@click.argument("before", type=FOLDER)
@click.argument("after", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a list.")
def diff(before: Path, after: Path, *, as_json: bool) -> None:
    """Tells what changed from one report to another; exit 1 if something got worse."""
    with told():
        found = compare(load(before), load(after))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1, sort_keys=True))
    else:
        for title, entries in difference_rows(found):
            click.echo(f"{title}: {len(entries)}")
            for name, remark in entries:
                click.echo(f"  {name}{f': {remark}' if remark else ''}")
        if found.remark:
            click.echo(wrapped(found.remark, ""))
        click.echo("something got worse" if found.worse else "nothing got worse")
    sys.exit(1 if found.worse else 0)


@click.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option("-o", "--output", "out", type=FOLDER, required=True, help="Folder of the whole.")
def merge(folders: tuple[Path, ...], out: Path) -> None:
    """Puts the shards of one run together; exit 1 if the whole fails."""
    with told():
        parts = [load(folder) for folder in folders]
        seconds = sum(float(r.get("seconds", 0.0)) for p in parts for r in p.results)
        summary = stored.save(out, merge_of(parts), seconds)
        head = parts[0].head
        summary = claiming.with_claim(out, summary, head.get("profile"), head.get("level"))
    counts = ", ".join(f"{n} {s}" for s, n in summary["counts"].items() if n)
    click.echo(f"{out}: {counts or 'nothing was checked'}")
    claiming.show(summary)
    sys.exit(0 if summary["ok"] else 1)


@click.command()
@click.argument("folder", type=FOLDER)
@output(FILE)
def expect(folder: Path, out: Path) -> None:
    """Writes or refreshes a waiver file from the failures of a report."""
    with told():
        found = expect_of(load(folder), out)
        out.write_text(found.text, encoding="utf-8")
    for word, names in (("new", found.new), ("kept", found.kept), ("dropped", found.dropped),
                        ("not in this report, kept", found.unseen)):  # fmt: skip
        for name in names:
            click.echo(f"{word}: {name}")
    click.echo(f"{out}: fill in every TODO; until then it is refused" if found.new else str(out))


COMMANDS = (html, badge, diff, merge, expect)
