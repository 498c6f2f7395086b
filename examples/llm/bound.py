"""What is bound at each site of a plan, why, and which settings had a say in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # types alone: no engine imports what has no promise
    from trivet.binding.plan import Plan
    from trivet.selection.choose import Row

REFERENCE = "reference"
_FILE = "file."


def rows(
    plan: Plan, counted: Mapping[tuple[str, str], dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """A row for each implementation at each site.

    Args:
        plan: The sites.
        counted: What is known of each site and implementation that ran, ``calls`` first; None
            where nobody counted: then everything that some step may choose, and None for how often.
    """
    if counted is None:
        counted = {
            (name, arm.provider): {"calls": None}
            for name in sorted(plan.sites)
            for arm in plan.sites[name].choice.arms
        }
    return [
        {
            "site": name,
            "operator": plan.sites[name].choice.operator.name,
            "form": plan.sites[name].choice.form,
            "implementation": provider,
            **known,
            "why": why(plan.explain(name), provider),
        }
        for (name, provider), known in counted.items()
    ]


def why(candidates: Iterable[Row], provider: str) -> str:
    """Why this one runs: who asked for it, for which calls, and what was refused before it.

    ``provider`` may be several, joined by ``|`` where a call still decides.
    """
    said, refused = [], []
    for row in candidates:
        if row.verdict == "no":
            refused.append(f"{row.provider} not: {row.reason}")
        if row.provider not in provider.split("|"):
            continue
        if row.verdict == "guarded":
            said.append(f"where {row.reason}")
        if row.note:
            said.append(row.note)
        said += [] if "preferred" in row.note else refused
        refused = []
    if not said and provider == REFERENCE:
        return "no package implements it for every call"
    return "; ".join(said) or "first in the order of its package"


def by_site(calls: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows of one site together: operator, form, and why each implementation runs."""
    sites: dict[str, dict[str, Any]] = {}
    for row in calls:
        named = {"operator": row["operator"], "form": row["form"], "implementations": {}}
        site = sites.setdefault(row["site"], named)
        site["implementations"][row["implementation"]] = row["why"]
    return sites


def on_reference(calls: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The sites that run the reference, each with its row."""
    return {row["site"]: row for row in calls if row["implementation"] == REFERENCE}


def settings(plan: Plan) -> list[tuple[str, object, str]]:
    """Names, values and origins of trivet's settings that somebody changed."""
    found = plan.settings
    own = [
        (f"trivet.{name}", _words(getattr(found, name)), source)
        for name, source in found.sources.items()
    ]
    file = [
        (f"trivet.{layer.removeprefix(_FILE)}.{operator}", ", ".join(names), str(found.config))
        for layer, orders in found.orders.items()
        if layer.startswith(_FILE)
        for operator, names in orders.items()
    ]
    return own + file


def _words(value: object) -> object:
    if isinstance(value, Mapping):
        return ";".join(f"{name}={','.join(names)}" for name, names in value.items())
    if isinstance(value, tuple):
        return ", ".join(value)
    return value if isinstance(value, bool) else str(value)
