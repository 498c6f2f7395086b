"""The command ``trivet-conformance``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trivet.errors import TrivetError
from trivet_conformance.families import FAMILIES
from trivet_conformance.families.case import claimed
from trivet_conformance.report import lines as report
from trivet_conformance.report.table import show_selftest, show_summary
from trivet_conformance.running.run import run as run_families
from trivet_conformance.running.run import steps
from trivet_conformance.selftest.selftest import selftest as judge_variants
from trivet_conformance.selftest.selftest import sole_killers
from trivet_conformance.subject.subject import Subject, dtype_text, installed

PLUGIN = click.option(
    "--plugin", required=True, metavar="NAME", help="Installed plugin; 'reference' is core itself."
)
OPS = click.option("--op", "ops", multiple=True, metavar="NAME", help="Only this operator.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
SEED = click.option("--seed", default=0, show_default=True, help="Decides every random number.")
QUICK = click.option("--quick", is_flag=True, help="Small grids: a first look, never a claim.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trivet-conformance")
def main() -> None:
    """Tells what is right, wrong, refused or unverified in a trivet plugin."""


@main.command()
@PLUGIN
@OPS
@click.option(
    "--family", "families", multiple=True, type=click.Choice(list(FAMILIES)), help="Only this one."
)
@SEED
@QUICK
@click.option("--case", default="", metavar="ID", help="Only the check with this id.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where report.jsonl and summary.json go.  [default: results/conformance/NAME]",
)
@AS_JSON
def run(
    plugin: str,
    ops: tuple[str, ...],
    families: tuple[str, ...],
    seed: int,
    quick: bool,
    case: str,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Runs the families over every implementation of a plugin.

    The exit status is 0 only if something was checked and nothing failed or errored.
    """
    subject = _subject(plugin, ops)
    folder = folder or Path("results", "conformance", plugin)
    head = report.head(plugin, seed=seed, quick=quick, device=subject.device.info.to_json())
    begin = time.monotonic()
    with report.Writer(folder, head) as writer, _progress(steps(subject, families)) as bar:
        task = bar.tasks[0].id

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        found = run_families(
            subject, families=families, seed=seed, quick=quick, case=case, progress=step
        )
        for result in found:
            writer.add(result)
    summary = report.close(folder, time.monotonic() - begin)
    if as_json:
        click.echo(json.dumps(summary, indent=1, sort_keys=True))
    else:
        show_summary(Console(), summary)
    sys.exit(0 if summary["ok"] else 1)


@main.command(name="list")
@PLUGIN
@OPS
@AS_JSON
def list_(plugin: str, ops: tuple[str, ...], as_json: bool) -> None:
    """Lists what a plugin claims: forms, dtypes, domains; runs nothing."""
    subject = _subject(plugin, ops)
    rows = claims(subject)
    if as_json:
        click.echo(json.dumps(rows, indent=1, sort_keys=True))
        return
    for row in rows["implementations"]:
        checks = "checks itself" if row["checks"] else "does not check itself"
        click.echo(f"{row['operator']}  {row['provider']}  {row['form']}, {checks}")
        click.echo(f"    dtypes: {', '.join(row['dtypes'])}")
        click.echo(f"    domain: {' and '.join(row['domain']) or 'every call'}")
    for kind in ("refused", "unmet"):
        for line in rows[kind]:
            click.echo(f"{kind}: {': '.join(line)}")


def claims(subject: Subject) -> dict[str, Any]:
    """What a plugin claims, as plain values."""
    found = []
    for target in subject.targets:
        claim = target.implementation.claim
        found.append(
            {
                "operator": target.op.name,
                "provider": target.provider,
                "form": target.label,
                "dtypes": [dtype_text(d) for d, refusal in claimed(target) if not refusal],
                "domain": [str(term) for term in claim.domain],
                "checks": claim.checks,
                "properties": sorted(claim.properties),
            }
        )
    return {
        "plugin": subject.plugin,
        "families": list(FAMILIES),
        "implementations": found,
        "refused": [list(row) for row in subject.refused],
        "unmet": [list(row) for row in subject.unmet],
    }


@main.command()
@SEED
@QUICK
@AS_JSON
def selftest(seed: int, quick: bool, as_json: bool) -> None:
    """Judges the kit: wrong providers must be killed, legal ones accepted."""
    from trivet_conformance.selftest.mutants import VARIANTS

    begin, outcomes = time.monotonic(), []
    with _progress(len(VARIANTS)) as bar:
        task = bar.tasks[0].id
        for outcome in judge_variants(quick=quick, seed=seed):
            outcomes.append(outcome)
            bar.update(task, advance=1, description=outcome.name)
    seconds = time.monotonic() - begin
    if as_json:
        document = {
            "ok": all(o.ok for o in outcomes),
            "variants": [o.to_json() for o in outcomes],
            "sole_killers": sole_killers(outcomes),
            "seconds": round(seconds, 1),
        }
        click.echo(json.dumps(document, indent=1, sort_keys=True))
    else:
        show_selftest(Console(), outcomes, seconds)
    sys.exit(0 if all(o.ok for o in outcomes) else 1)


def _subject(plugin: str, ops: tuple[str, ...]) -> Subject:
    try:
        subject = installed(plugin)
        return subject.only(ops) if ops else subject
    except (TrivetError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _progress(total: int) -> Progress:
    """A bar on the error stream, so that standard output carries the answer alone."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=total)
    return bar


if __name__ == "__main__":
    main()
