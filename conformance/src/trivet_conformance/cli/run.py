"""``trivet-conformance run`` and ``preflight``."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from trivet.errors import TrivetError
from trivet_conformance.cli import claiming
from trivet_conformance.cli.options import AS_JSON, EXECUTION, PLUGIN, progress_bar
from trivet_conformance.collective import COMM
from trivet_conformance.collective import OPERATOR as COLLECTIVES
from trivet_conformance.families import FAMILIES
from trivet_conformance.memory import MEMORY, OPERATOR
from trivet_conformance.report.errors import ReportError
from trivet_conformance.report.junit import to_junit
from trivet_conformance.report.lines import read
from trivet_conformance.report.table import show_summary
from trivet_conformance.report.verdict import loading_ended
from trivet_conformance.result import BAD
from trivet_conformance.running.drive import LIMIT, Driver
from trivet_conformance.running.session import Options, Session
from trivet_conformance.running.wire import Job
from trivet_conformance.subject.locating import is_path, locate

INTERRUPTED: Final = 130
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


class _Seconds(click.FloatRange):
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):  # no time is ever later than one that is no number
            self.fail(f"{value!r} is no time", param, ctx)
        return seconds


class _Shard(click.ParamType):  # type: ignore[type-arg]
    name = "I/N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        which, _, of = str(value).partition("/")
        if not (which.isdigit() and of.isdigit() and 1 <= int(which) <= int(of)):
            self.fail(f"{value!r} is no shard: 3/8 is the third of eight", param, ctx)
        return int(which), int(of)


@click.command()
@PLUGIN
@EXECUTION
@click.option("--op", "ops", multiple=True, metavar="NAME", help="Only this operator.")
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice([*FAMILIES, OPERATOR, *MEMORY, COLLECTIVES, *COMM]),
    help=f"Only this one; {OPERATOR} and {COLLECTIVES} are all of their own.",
)
@click.option("--seed", default=0, show_default=True, help="Decides every random number.")
@click.option("--quick", is_flag=True, help="Small grids: a first look, never a claim.")
@click.option("--case", default="", metavar="ID", help="Only the check with this id.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where report.jsonl and summary.json go.  [default: results/conformance/NAME, and its "
    "folder cases with --op, --family or --case]",
)
@click.option("--resume", is_flag=True, help="Go on with the report in --dir.")
@click.option("--shard", type=_Shard(), default="1/1", help="One part of the checks: 3/8.")
@click.option("--limit", type=_Seconds(min=0, min_open=True), default=LIMIT, show_default=True,
              help="Seconds that one check may take.")  # fmt: skip
@click.option("--in-process", is_flag=True, help="Plugin code in this process: for a debugger.")
@click.option("--waivers", type=_FILE, help="Failures that are known: a TOML file.")
@click.option("--junit", type=_FILE, help="Also write JUnit XML.")
@claiming.LEVEL
@claiming.PROFILE
@claiming.MODE
@AS_JSON
def run(
    plugin: str, folder: Path | None, quick: bool, mode: str, level: str | None,
    profile: str | None, as_json: bool, junit: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Runs the families over every implementation of a plugin, in a process of its own.

    The exit status is 0 only if the run came to its end, something was checked and nothing
    failed, and with --mode certify only if the claim holds.
    """
    mode = "quick" if quick else mode
    for whole, own in {OPERATOR: MEMORY, COLLECTIVES: COMM}.items():
        if whole in given["families"]:
            given["families"] = tuple({*given["families"], *own} - {whole})
    narrowed = {
        "--op": given["ops"], "--family": given["families"], "--case": given["case"],
        "--quick": quick, "--in-process": given["in_process"],
    }  # fmt: skip
    claiming.check(mode, level, profile, narrowed)
    name = Path(plugin.partition(":")[0]).stem if is_path(plugin) else plugin
    part = any(given[option] for option in ("ops", "families", "case"))
    folder = folder or place_of_report(name, part=part)
    options = Options(plugin, folder, mode=mode, level=level or "", profile=profile or "", **given)
    try:
        summary = _session(options)
    except KeyboardInterrupt:
        click.echo(f"interrupted; go on with --resume --dir {folder}", err=True)
        sys.exit(INTERRUPTED)
    except (TrivetError, ReportError, ValueError, OSError) as error:  # OSError: --dir
        raise click.ClickException(str(error)) from error
    if options.shard == (1, 1):
        summary = claiming.with_claim(folder, summary, profile, level)
    elif profile:
        click.echo("one shard claims nothing: trivet-conformance merge does", err=True)
    if junit:
        _write_junit(junit, folder)
    if as_json:
        click.echo(json.dumps(summary, indent=1, sort_keys=True))
    else:
        show_summary(Console(), summary)
        claiming.show(summary)
        click.echo(f"report: {folder}")
    sys.exit(0 if summary["ok"] else 1)


def place_of_report(name: str, *, part: bool) -> Path:
    """Where a report goes when nobody says where: a part never replaces the whole."""
    whole = Path("results", "conformance", name)
    return whole / "cases" if part else whole


def _write_junit(path: Path, folder: Path) -> None:
    try:
        path.write_text(to_junit(read(folder)), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--junit: {error}; the report is in {folder}") from error


def _session(options: Options) -> dict[str, Any]:
    with progress_bar("loading") as bar:
        task = bar.tasks[0].id

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text, total=session.total or None)

        session = Session(options, progress=step)
        return session.run()


@click.command()
@PLUGIN
@EXECUTION
@AS_JSON
def preflight(plugin: str, execution: str, as_json: bool) -> None:
    """Asks whether plugin and device work at all: loading, hooks, copies, fills, comparisons."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        try:
            located = locate(plugin, scratch, execution)
        except TrivetError as error:
            raise click.ClickException(str(error)) from error
        job = Job(located.name, plugin, located.paths, checks_only=True, execution=execution)
        driver = Driver(job)
        results = list(driver.run())
    if driver.refused:
        raise click.ClickException(driver.refused)
    untried = [r.finding.reason for r in results if loading_ended(r.to_json())]
    good = driver.finished and not untried and not any(r.status in BAD for r in results)
    if as_json:
        rows = [r.to_json() for r in results]
        document = {"ok": good, "device": driver.hello.get("device", {}), "checks": rows}
        click.echo(json.dumps(document, indent=1, sort_keys=True))
    else:
        for r in results:
            click.echo(
                f"{r.status:<14} {r.id}" + (f": {r.finding.reason}" * bool(r.finding.reason))
            )
        why = untried[0] if untried else "mend the lines above first"
        click.echo("ready" if good else f"not ready: {why}")
    sys.exit(0 if good else 1)
