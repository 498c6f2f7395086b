"""Reports and the matrix of the self-test as tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trivet_conformance.families import FAMILIES
from trivet_conformance.result import Status
from trivet_conformance.selftest.selftest import Outcome

SHOWN_PROBLEMS = 20


def show_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """One row an operator and provider, one column a family, then what is wrong."""
    families = [f for f in ("load", *FAMILIES) if _has(summary, f)]
    _line(console, _title(summary))
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("operator", overflow="fold")
    table.add_column("provider", overflow="fold")
    for family in families:
        table.add_column(family, justify="right")
    for op, providers in summary["operators"].items():
        for provider, row in providers.items():
            table.add_row(op, provider, *(_cell(row.get(f)) for f in families))
    console.print(table)
    if summary["operators"]:
        _line(console, "checks passed, and the largest share of an error budget that one used")
    _show_problems(console, summary["bad"])
    counts = ", ".join(f"{n} {s}" for s, n in summary["counts"].items() if n)
    console.print(f"{counts or 'nothing was checked'}; {summary['seconds']} s")
    if summary["run"].get("mode") == "quick":
        console.print("quick mode: a first look, not enough for a claim")


def _show_problems(console: Console, bad: Sequence[Mapping[str, Any]]) -> None:
    """One entry for problems of one family, provider and reason; ids and commands stay whole."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for problem in bad:
        family, op, *provider = problem["id"].split("/")[:4]
        reason = re.sub(r"\d[\d.e+-]*", "N", problem["reason"])
        groups.setdefault((f"{family} of {op}, {'/'.join(provider)}", reason), []).append(problem)
    for (where, _), problems in list(groups.items())[:SHOWN_PROBLEMS]:
        first = problems[0]
        cases = f"{len(problems)} cases" if len(problems) > 1 else "1 case"
        _line(console, f"{first['status']}: {where}: {cases}", style="bold red")
        _line(console, f"  {first['reason']}\n  {first['repro']}")
    if (more := len(groups) - SHOWN_PROBLEMS) > 0:
        _line(console, f"and {more} more kinds of problem, in report.jsonl")


def _line(console: Console, text: str, style: str = "") -> None:
    """Text as it is: never wrapped, so that what is copied from it works."""
    console.print(Text(text, style=style), soft_wrap=True)


def _has(summary: Mapping[str, Any], family: str) -> bool:
    rows = summary["operators"].values()
    return any(family in row for providers in rows for row in providers.values())


def _title(summary: Mapping[str, Any]) -> str:
    run = summary["run"]
    device = run.get("device", {})
    return f"{run['plugin']} on {device.get('name') or device.get('kind')}, seed {run['seed']}"


def _cell(counts: Mapping[str, Any] | None) -> Text:
    if not counts:
        return Text("-", style="dim")
    bad = counts.get(Status.FAIL, 0) + counts.get(Status.ERROR, 0)
    good = counts.get(Status.PASS, 0) + counts.get(Status.REFUSED_OK, 0)
    if bad:
        return Text(f"{bad} of {bad + good} bad", style="red")
    if not good:
        return Text("not supported" if counts.get(Status.NOT_SUPPORTED) else "not run", style="dim")
    margin = f" {counts['margin']:.2f}" if counts["margin"] else ""
    return Text(f"{good}{margin}", style="green")


def show_selftest(console: Console, outcomes: list[Outcome], seconds: float) -> None:
    """Which family kills which mutant; the named one is marked."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("variant", overflow="fold")
    for family in FAMILIES:
        table.add_column(family, justify="center")
    table.add_column("verdict")
    for outcome in outcomes:
        marks = [_mark(outcome, family) for family in FAMILIES]
        wanted = "killed" if outcome.killer else "accepted"
        verdict = Text(wanted, style="green") if outcome.ok else Text("WRONG", style="bold red")
        table.add_row(outcome.name, *marks, verdict)
    console.print(table)
    _line(console, "X: killed by the family named for it; x: by another; legal ones by none")
    for outcome in outcomes:
        if not outcome.ok:
            for family, reason in outcome.reasons.items():
                _line(console, f"{outcome.name}, {family}: {reason}")
    wrong = sum(not o.ok for o in outcomes)
    legal = sum(not o.killer for o in outcomes)
    mutants = len(outcomes) - legal
    _line(console, f"{mutants} mutants, {legal} legal variants, {wrong} wrong; {seconds:.1f} s")


def _mark(outcome: Outcome, family: str) -> Text:
    if family not in outcome.tried:
        return Text("", style="dim")
    if family not in outcome.killed:
        return Text(".", style="dim")
    return Text("X" if family == outcome.killer else "x", style="red")
