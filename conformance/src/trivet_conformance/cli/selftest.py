"""``selftest``: the kit judges wrong and legal providers, and says how well it does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from trivet_conformance.cli.options import AS_JSON, progress_bar
from trivet_conformance.report.table import show_selftest
from trivet_conformance.selftest.selftest import Outcome, figures
from trivet_conformance.selftest.selftest import selftest as judge_variants


@click.command()
@click.option("--seed", default=0, show_default=True, help="Decides every random number.")
@click.option("--quick", is_flag=True, help="Small grids; a mutant meets one family.")
@AS_JSON
def selftest(seed: int, quick: bool, as_json: bool) -> None:
    """Judges the kit: wrong providers must be killed, legal ones accepted."""
    from trivet_conformance.selftest.collective import COMM_VARIANTS, judge_comm
    from trivet_conformance.selftest.hostile import HOSTILE, hostile_figures, judge_hostile
    from trivet_conformance.selftest.legs import leg_figures
    from trivet_conformance.selftest.memory import MEMORY_VARIANTS, judge_memory
    from trivet_conformance.selftest.mutants import VARIANTS

    begin, outcomes, hostile = time.monotonic(), list[Outcome](), list[Outcome]()
    memory, comm = list[Outcome](), list[Outcome]()
    total = len(VARIANTS) + len(MEMORY_VARIANTS) + len(COMM_VARIANTS)
    with progress_bar(total=total + (0 if quick else len(HOSTILE))) as bar:
        task = bar.tasks[0].id
        for outcome in judge_variants(quick=quick, seed=seed):
            outcomes.append(outcome)
            bar.update(task, advance=1, description=outcome.name)
        for outcome in judge_memory(quick=quick, seed=seed):
            memory.append(outcome)
            bar.update(task, advance=1, description=outcome.name)
        for outcome in judge_comm(quick=quick, seed=seed):
            comm.append(outcome)
            bar.update(task, advance=1, description=outcome.name)
        for outcome in () if quick else judge_hostile(seed=seed):  # processes of their own
            hostile.append(outcome)
            bar.update(task, advance=1, description=outcome.name)
    seconds = time.monotonic() - begin
    found = figures(outcomes, quick=quick) | leg_figures("memory", memory)
    found |= leg_figures("comm", comm)
    found |= {
        "ok": found["ok"] and all(o.ok for o in (*memory, *comm)),
        "seconds": round(seconds, 1),
    }
    if not quick:
        found |= hostile_figures(hostile)
        found["ok"] = found["ok"] and all(o.ok for o in hostile)
    if as_json:
        click.echo(json.dumps(found, indent=1, sort_keys=True))
    else:
        show_selftest(Console(), [*outcomes, *memory, *comm], seconds)
        click.echo(_told(found))
    sys.exit(0 if found["ok"] else 1)


def _told(found: Mapping[str, Any]) -> str:
    """The figures in a few lines."""
    killed = f"{found['mutants_killed']} of {found['mutants']} mutants killed by the named family"
    legal = f"{found['legal_accepted']} of {found['legal']} legal variants accepted"
    memory = (
        f"{found['memory_mutants_killed']} of {found['memory_mutants']} wrong memories killed, "
        f"{found['memory_legal_accepted']} of {found['memory_legal']} legal ones accepted"
    )
    comm = (
        f"{found['comm_mutants_killed']} of {found['comm_mutants']} wrong collectives killed, "
        f"{found['comm_legal_accepted']} of {found['comm_legal']} legal ones accepted"
    )
    seen = f"{found['share_seen_by_assert_close']:.0%} of the mutants"
    hostile = ""
    if "hostile" in found:
        hostile = f"\n{found['hostile_reported']} of {found['hostile']} hostile plugins reported"
        wrong = [row for row in found["hostile_plugins"] if not row["ok"]]
        hostile += "".join(f"\n{row['name']}: {row['reasons']}" for row in wrong)
    return (
        f"{killed} ({found['classes']} classes of defects), {legal}\n{memory}\n{comm}\n"
        f"torch.testing.assert_close with its defaults sees {seen}"
        f"{hostile}"
    )
