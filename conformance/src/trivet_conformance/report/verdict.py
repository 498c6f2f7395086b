"""Whether a run is in order, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trivet_conformance.collective import COMM
from trivet_conformance.memory import CORE, MEMORY
from trivet_conformance.result import BAD, Status

NO_CALLS: Final = ("load", "harness")
"""Families of checks around the calls: alone they show nothing of an implementation."""


def in_order(head: Mapping[str, Any], results: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nothing of a run is wrong, and something of the plugin was judged.

    Only a run of level L0 judges nothing but what is around the calls, and only one that was
    narrowed to memory or collectives nothing but what core composes.
    """
    around = () if head.get("level") == "L0" else NO_CALLS
    legs = {*MEMORY, *COMM}
    chosen = head.get("families") or ()
    composed = not chosen or not set(chosen) <= legs
    results = list(results)
    judged = {Status.PASS, Status.REFUSED_OK}
    return not any(r["status"] in BAD or loading_ended(r) for r in results) and any(
        r["status"] in judged
        and r["family"] not in around
        and not (composed and r["family"] in legs and r.get("provider") == CORE)
        for r in results
    )


def loading_ended(row: Mapping[str, Any]) -> bool:
    """Whether a result says that the plugin cannot be used here, and nothing of it is wrong."""
    plugin = (row["family"], row.get("operator")) == ("load", "plugin")
    return plugin and str(row["status"]) == Status.NOT_RUN.value


def why_not(head: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Why a run is not in order, in a few words; empty where it is."""
    if in_order(head, results):
        return ""
    if bad := sum(r["status"] in BAD for r in results):
        return f"{bad} check{'s fail' if bad > 1 else ' fails'}"
    reasons = [str(r["reason"]) for r in results if loading_ended(r)]
    return ": ".join(["no implementation was judged", *reasons[:1]])
