"""The options with which a run certifies: level, profile and mode, and what they allow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from trivet_conformance.calls.profiles import PROFILES
from trivet_conformance.cli.cells import counted, wrapped
from trivet_conformance.report import lines as report
from trivet_conformance.suite.claims import CERTIFY, Claim, claim
from trivet_conformance.suite.levels import LEVELS

SHOWN: Final = 20

LEVEL = click.option(
    "--level", type=click.Choice(LEVELS), help="Only the families that this level wants."
)
PROFILE = click.option(
    "--profile", type=click.Choice(list(PROFILES)), help="What --mode certify claims."
)
MODE = click.option(
    "--mode",
    type=click.Choice(["full", "quick", CERTIFY]),
    default="full",
    show_default=True,
    help="certify: everything that a claim of --level and --profile needs; exit 0 if it holds.",
)


def check(
    mode: str, level: str | None, profile: str | None, narrowed: Mapping[str, object]
) -> None:
    """Refuses options that do not go together.

    Args:
        mode: full, quick or certify.
        level: the level, where one is given.
        profile: the profile, where one is given.
        narrowed: options that leave checks out, by name.

    Raises:
        UsageError: the text says which option is wrong.
    """
    if mode != CERTIFY:
        if profile:
            msg = f"--profile is for --mode {CERTIFY}"
            raise click.UsageError(msg)
        return
    if not (level and profile):
        msg = f"--mode {CERTIFY} needs --level and --profile"
        raise click.UsageError(msg)
    if used := [name for name, value in narrowed.items() if value]:
        msg = f"--mode {CERTIFY} leaves nothing out: not with {', '.join(used)}"
        raise click.UsageError(msg)


def told(claim: Claim) -> str:
    """A claim in words."""
    name = f"suite {claim.suite}, {claim.profile}, level {claim.level}"
    if claim.holds:
        lines = [f"certified: {name} (must-pass list {claim.hash[:12]})"]
    else:
        lines = [f"NOT certified: {name}"]
    if claim.why_not:
        lines.append(wrapped(claim.why_not, "  "))
    lines += [f"  not satisfied: {line}" for line in claim.missing[:SHOWN]]
    lines += [f"  failed: {line}" for line in claim.failed[:SHOWN]]
    more = sum(max(len(found) - SHOWN, 0) for found in (claim.missing, claim.failed))
    if more:
        lines.append(f"  and {more} more, in summary.json")
    if claim.optional_not_claimed:
        lines.append(counted("left out, as the profile allows", claim.optional_not_claimed, "  "))
    return "\n".join(lines)


def with_claim(
    folder: Path, summary: Mapping[str, Any], profile: str | None, level: str | None
) -> dict[str, Any]:
    """A summary with what is claimed, also on disk; in order only where the claim holds.

    Without a profile nothing is claimed, and the summary stays as it is.
    """
    if not (profile and level):
        return dict(summary)
    found = claim(report.read(folder), profile, level)
    made = {
        **summary,
        "claim": found.to_json(),
        "ok": summary["ok"] and found.holds,
        "claimed": told(found),
    }
    text = json.dumps(made, indent=1, sort_keys=True)
    (folder / report.SUMMARY).write_text(text + "\n", encoding="utf-8")
    return made


def show(summary: Mapping[str, Any]) -> None:
    """Prints what a summary claims, where it claims something."""
    if text := summary.get("claimed"):
        click.echo(text)
