"""``trivet plan``: binds the call sites of a file, and saves or verifies the lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from trivet.binding.plan import Plan
from trivet.binding.step_tables import Site, Tables
from trivet.cli.device_name import where
from trivet.cli.program import FOUND_PROBLEM
from trivet.cli.screen import Screen, emit, json_option, key_page
from trivet.cli.site_files import read_sites
from trivet.cli.values import device_option
from trivet.devices import Device, device
from trivet.errors import ConfigError, LockMismatch
from trivet.settings import MODES, read

KEYS: Final = {
    "device": "NAME:INDEX",
    "mode": "eager, compiled, captured or exported",
    "digest": "of the plan; empty when the lock does not fit",
    "sites": "{site: {op, facts, variables, candidates, steps}}",
    "lock": "{file, agrees, fields, overrides}; file null without",
    "saved": "file that was written, or null",
}
"""Keys of the document.

``candidates`` is ``[{provider, verdict, reason, note}]``; ``steps`` is ``[{when, providers}]``,
one entry for each kind of step: which terms hold, and what then runs, several where a call still
decides. The first entry is the step whose sizes nobody says. ``lock.overrides`` names the order
lists of environment and file that the lock overrides: {site: list}.
"""


@click.command("plan", epilog=key_page(KEYS))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--lock", "locked", metavar="FILE", type=click.Path(path_type=Path),
              help="Compare with this lock; exit code 1 when they differ.")  # fmt: skip
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path),
              help="Write the lock.")  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), default="eager", show_default=True)
@device_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    *,
    locked: Path | None,
    save: Path | None,
    mode: str,
    device_name: str,
    as_json: bool,
) -> None:
    """Binds every site of FILE (.json or .toml) at once, and shows what each step runs.

    \b
    {"norm": {"op": "rms_norm",
              "facts": {"dtype": "float32", "hidden": 576, "tokens": [1, 8]}}}

    Dtypes are names, a range is its two ends. A size given as text is that step variable.
    """  # noqa: D301 - \b is click's mark of a paragraph that keeps its lines
    sites = read_sites(file)
    dev = device(device_name)
    compared = locked or read().lock
    lock: dict[str, Any] = {"file": str(compared) if compared else None, "agrees": None,
                            "fields": [], "overrides": {}}  # fmt: skip
    document = {"device": where(dev), "mode": mode, "digest": "", "sites": {}, "lock": lock,
                "saved": None}  # fmt: skip
    try:
        made = dev.plan(sites, mode=mode, lock=locked)
    except LockMismatch as error:
        lock |= {"agrees": False, "fields": list(error.fields)}
        if not as_json:
            raise
        emit(document)
        ctx.exit(FOUND_PROBLEM)
    if compared:
        lock["agrees"] = True
        lock["overrides"] = {n: s.choice.overruled for n, s in made.sites.items()
                             if s.choice.overruled}  # fmt: skip
    document |= {"digest": made.digest, "sites": _sites(made)}
    if save:
        document["saved"] = str(save)
        _save(made, save)
    if as_json:
        emit(document)
    else:
        _show(dev, document)


def _save(made: Plan, path: Path) -> None:
    try:
        made.save_lock(path)
    except (OSError, ValueError) as error:  # ValueError: a path without a last part
        raise ConfigError(f"{path} cannot be written: {error}", fix="name another file") from error


def _sites(made: Plan) -> dict[str, Any]:
    tables = Tables.over(list(made.sites.values()))
    found = {}
    for name, site in made.sites.items():
        found[name] = {
            "op": site.target,
            "facts": site.choice.facts.to_json(),
            "variables": dict(site.variables),
            "candidates": [
                {"provider": r.provider, "verdict": r.verdict, "reason": r.reason, "note": r.note}
                for r in made.explain(name)
            ],
            "steps": _steps(tables, site),
        }
    return found


def _steps(tables: Tables, site: Site) -> list[dict[str, list[str]]]:
    """The kinds of step that a site distinguishes, each with what may run then."""
    terms = {t for of in site.step_terms().values() for t in of}
    found: dict[tuple[str, ...], list[str]] = {}
    for _, choice, decided in tables.narrowed(site):
        if decided and set(decided) != terms:
            continue  # a step of which only some sizes are said; its guards are those left over
        when = tuple(f"{'' if holds else 'not '}{term}" for term, holds in decided.items())
        found.setdefault(when, [arm.provider for arm in choice.arms])
    return [{"when": list(when), "providers": providers} for when, providers in found.items()]


def _show(dev: Device, found: Mapping[str, Any]) -> None:
    screen = Screen()
    screen.heading(f"Plan of {len(found['sites'])} sites on {where(dev)}, mode {found['mode']}")
    rows = []
    for name, site in found["sites"].items():
        for i, step in enumerate(site["steps"]):
            op = site["op"] + "".join(f"\n{d} is {v}" for d, v in site["variables"].items())
            said = " and ".join(step["when"]) or ("any" if len(site["steps"]) == 1 else "not said")
            label = (name, op) if i == 0 else ("", "")
            rows.append((*label, said, "\n".join(step["providers"])))
    screen.table(("site", "operator", "step", "runs"), rows, flexible=[2])
    several = any(len(s["providers"]) > 1 for site in found["sites"].values()
                  for s in site["steps"])  # fmt: skip
    if several:
        screen.line("where several are listed, each call decides, in this order", 2)
    lock = found["lock"]
    screen.pairs([
        ("digest", found["digest"]),
        ("lock", f"{lock['file']} agrees" if lock["file"] else ""),
        ("saved", found["saved"] or ""),
    ])  # fmt: skip
    for source in dict.fromkeys(lock["overrides"].values()):
        at = ", ".join(site for site, said in lock["overrides"].items() if said == source)
        screen.line(f"the lock overrides {source} (at {at})", 2)
