"""Reports and the matrix of the self-test as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trivet_conformance.collective import COMM
from trivet_conformance.families import FAMILIES
from trivet_conformance.memory import MEMORY
from trivet_conformance.report.problems import told
from trivet_conformance.report.verdict import NO_CALLS
from trivet_conformance.result import BAD, Status
from trivet_conformance.selftest.selftest import Outcome


def show_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Counts by provider, counts by family, then what is wrong; every table fits 80 columns."""
    _line(console, _title(summary))
    operators = {op: rows for op, rows in summary["operators"].items() if _of_calls(rows)}
    table = _counting("operator", "provider")
    for op, providers in operators.items():
        for provider, row in providers.items():
            table.add_row(op, provider, *_counted(row))
    if operators:
        console.print(table)
    families = _counting("family")
    for family in (*NO_CALLS, *FAMILIES, *MEMORY, *COMM):
        rows = _of_family(summary, family)
        if rows:
            families.add_row(family, *_counted(rows))
    console.print(families)
    if summary["operators"]:
        _line(console, "n/s: not supported, n/r: not run, margin: largest share of a budget used")
    for text, style in told(summary["bad"]):
        _line(console, text, style)
    counts = ", ".join(f"{n} {s}" for s, n in summary["counts"].items() if n)
    console.print(f"{counts or 'nothing was checked'}; {summary['seconds']} s")
    if summary.get("why"):
        _line(console, f"exit status 1: {summary['why']}", style="bold red")
    if summary["run"].get("mode") == "quick":
        console.print("quick mode: a first look, not enough for a claim")


def _counting(*names: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name == "operator", min_width=12)
    for name in ("pass", "refused", "n/s", "n/r", "bad", "margin"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _of_calls(providers: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(family not in NO_CALLS for row in providers.values() for family in row)


def _of_family(summary: Mapping[str, Any], family: str) -> dict[str, Mapping[str, Any]]:
    return {
        f"{op}/{provider}": row[family]
        for op, providers in summary["operators"].items()
        for provider, row in providers.items()
        if family in row
    }


def _counted(rows: Mapping[str, Mapping[str, Any]]) -> list[Text]:
    """The cells of one line, summed over its parts."""

    def total(*statuses: Status) -> int:
        return sum(row.get(s, 0) for row in rows.values() for s in statuses)

    bad = {s: total(s) for s in Status if s in BAD and total(s)}
    waived = total(Status.WAIVED)
    words = [str(sum(bad.values()))] * bool(bad) + [f"{waived} waived"] * bool(waived)
    margin = max((row["margin"] for row in rows.values()), default=0.0)
    return [
        Text(str(total(Status.PASS)), style="green"),
        *(
            Text(str(n) if n else "-", style="" if n else "dim")
            for n in map(total, (Status.REFUSED_OK, Status.NOT_SUPPORTED, Status.NOT_RUN))
        ),
        Text(", ".join(words) or "-", style="red" if bad else "yellow" if waived else "dim"),
        Text(f"{margin:.2f}" if margin else "-", style="" if margin else "dim"),
    ]


def _line(console: Console, text: str, style: str = "") -> None:
    """Text as it is: never wrapped, so that what is copied from it works."""
    console.print(Text(text, style=style), soft_wrap=True)


def _title(summary: Mapping[str, Any]) -> str:
    run = summary["run"]
    device = run.get("device", {})
    where = device.get("name") or device.get("kind")
    return f"{run['plugin']} {f'on {where}' if where else 'without a device'}, seed {run['seed']}"


def show_selftest(console: Console, outcomes: list[Outcome], seconds: float) -> None:
    """Which family kills which mutant; the named one is marked."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("variant", overflow="fold")
    table.add_column("killed by", overflow="fold")
    table.add_column("verdict")
    for outcome in outcomes:
        marks = Text(", ").join(_mark(outcome, family) for family in outcome.killed)
        wanted = "killed" if outcome.killer else "accepted"
        verdict = Text(wanted, style="green") if outcome.ok else Text("WRONG", style="bold red")
        table.add_row(outcome.name, marks, verdict)
    console.print(table)
    _line(console, "bold: the family that is named for it; legal variants are killed by none")
    for outcome in outcomes:
        if not outcome.ok:
            for family, reason in outcome.reasons.items():
                _line(console, f"{outcome.name}, {family}: {reason}")
    wrong = sum(not o.ok for o in outcomes)
    legal = sum(not o.killer for o in outcomes)
    mutants = len(outcomes) - legal
    _line(console, f"{mutants} mutants, {legal} legal variants, {wrong} wrong; {seconds:.1f} s")


def _mark(outcome: Outcome, family: str) -> Text:
    return Text(family, style="bold red" if family == outcome.killer else "dim")
