"""``list``: what a plugin claims, and what a level of a profile still wants; runs nothing."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import click

from trivet.contracts.memory import ABILITIES
from trivet.errors import TrivetError
from trivet_conformance.calls.profiles import PROFILES, profile
from trivet_conformance.cli.cells import counted, listed, wrapped
from trivet_conformance.cli.options import AS_JSON, PLUGIN
from trivet_conformance.collective import COMM, COMM_LEVELS, comm_for
from trivet_conformance.families import FAMILIES, LEVEL_OF
from trivet_conformance.families.case import claimed
from trivet_conformance.memory import MEMORY, MEMORY_LEVELS, memory_for
from trivet_conformance.subject.locating import subject_of
from trivet_conformance.subject.subject import Subject, dtype_text
from trivet_conformance.suite.claims import MODEL, mustpass
from trivet_conformance.suite.levels import LEVELS, families_for
from trivet_conformance.suite.version import SUITE


@click.command(name="list")
@PLUGIN
@click.option("--op", "ops", multiple=True, metavar="NAME", help="Only this operator.")
@click.option(
    "--level", type=click.Choice(LEVELS), default="L1", show_default=True, help="Level of a claim."
)
@click.option(
    "--profile",
    "name",
    type=click.Choice(list(PROFILES)),
    help="Only this profile; default all.",
)
@AS_JSON
def list_(plugin: str, ops: tuple[str, ...], level: str, name: str | None, as_json: bool) -> None:
    """Lists what a plugin claims, and what it lacks for a level; runs nothing."""
    try:
        subject = subject_of(plugin)
        subject = subject.only(ops) if ops else subject
    except (TrivetError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    rows = claims(subject)
    rows["suite"] = {
        "version": SUITE,
        "level": level,
        "families": [*families_for(level), *memory_for(level), *comm_for(level)],
        "profiles": {p: wanted(subject, p, level, ops) for p in ([name] if name else PROFILES)},
    }
    if as_json:
        click.echo(json.dumps(rows, indent=1, sort_keys=True))
    else:
        _show(rows)


def _show(rows: dict[str, Any]) -> None:
    for row in rows["implementations"]:
        checks = "checks itself" if row["checks"] else "does not check itself"
        click.echo(f"{row['operator']}  {row['provider']}  {row['form']}, {checks}")
        click.echo(f"    dtypes: {', '.join(row['dtypes'])}")
        click.echo(f"    domain: {' and '.join(row['domain']) or 'every call'}")
    if rows["memory"]:
        brings, rest = (", ".join(names) or "nothing" for names in rows["memory"].values())
        click.echo(wrapped(f"memory: brings {brings}; leaves to core: {rest}", ""))
    if rows["collectives"]:
        brings = ", ".join(rows["collectives"])
        click.echo(wrapped(f"collectives: brings {brings}", ""))
    for kind in ("refused", "unmet"):
        for line in rows[kind]:
            click.echo(f"{kind}: {': '.join(line)}")
    if rows["extends"]:
        click.echo(addon(rows["plugin"], rows["extends"]))
    suite = rows["suite"]
    families = " ".join(suite["families"])
    click.echo(wrapped(f"suite {suite['version']}, level {suite['level']}: {families}", ""))
    for name, found in suite["profiles"].items():
        click.echo(f"{name}: {found['lines']} checks to pass, {found['claimed']} of them claimed")
        wanted_not = listed("not claimed, and wanted", found["not_claimed"])
        optional = counted("not claimed, and optional", found["optional_not_claimed"])
        for text in filter(None, (wanted_not, optional)):
            click.echo(text)


def addon(plugin: str, kind: str) -> str:
    """What a package for somebody else's device may claim."""
    return wrapped(
        f"{plugin} adds to the device {kind!r}: a run judges what {plugin} brings, and nothing of "
        f"{kind}'s own package. It may claim L0 of any profile; L1 and above only if it brings "
        "every operator that the profile wants. An exit status of 0 without a claim says that "
        "everything it brings passed.",
        "",
    )


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
        "extends": subject.extends,
        "families": [*FAMILIES, *MEMORY, *COMM],
        "levels": {**LEVEL_OF, **MEMORY_LEVELS, **COMM_LEVELS},
        "memory": _memory(subject),
        "collectives": _collectives(subject),
        "implementations": found,
        "refused": [list(row) for row in subject.refused],
        "unmet": [list(row) for row in subject.unmet],
    }


def _memory(subject: Subject) -> dict[str, list[str]] | None:
    """The abilities that a plugin brings for its device's memory, and those that it leaves out."""
    leg = subject.memory
    if leg is None:
        return None
    brings = {ability.__name__: leg.brings(ability) for ability in ABILITIES}
    return {
        "brings": [name for name, has in brings.items() if has],
        "leaves_to_core": [name for name, has in brings.items() if not has],
    }


def _collectives(subject: Subject) -> dict[str, list[str]] | None:
    """Operation -> what the plugin brings for it; empty where core serves alone."""
    leg = subject.comm
    if leg is None:
        return None
    return {o: list(ids) for o, ids in leg.offers().items()} if leg.classes() else {}


def wanted(subject: Subject, name: str, level: str, ops: Collection[str] = ()) -> dict[str, Any]:
    """What a level of a profile wants, and which of it a plugin claims; of some operators only.

    A cell is claimed when an implementation's domain admits its dtypes; whether it passes is for
    a run to say.
    """
    own, have = profile(name), set[str]()
    for target in subject.targets:
        admitted = [dtype_text(d) for d, refusal in claimed(target) if not refusal]
        have |= {f"{target.op.name}/{dtype}" for dtype in admitted}
        have |= {f"{target.op.name}/-"}
    lines = [n for n in mustpass(name, level) if not ops or n.split("/")[1] in ops]
    lacking = [line for line in lines if cell_of(line) not in have]
    left = [f"{op}/{d}" for op in own.mandatory for d in own.optional_dtypes]
    left += [f"{op}/{d}" for op in own.optional for d in (*own.dtypes, *own.optional_dtypes)]
    return {
        "lines": len(lines),
        "claimed": len(lines) - len(lacking),
        "not_claimed": sorted({cell_of(line) for line in lacking}),
        "optional_not_claimed": [
            cell for cell in left if cell not in have and (not ops or cell.partition("/")[0] in ops)
        ],
    }


def cell_of(line: str) -> str:
    """``operator/dtype`` of a must-pass line."""
    family, op, rest = line.split("/", 2)
    return f"{op}/{rest.split(':')[1] if family == MODEL else rest}"
