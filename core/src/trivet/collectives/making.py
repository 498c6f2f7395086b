"""The providers of a group are made, by all members alike; and what decided who they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from trivet.collectives.agreement import Agreement, prefixed
from trivet.collectives.candidates import LOG, Candidate, Source
from trivet.collectives.health import Health, meaning
from trivet.contracts.collectives import Closable, Group, Store
from trivet.errors import CommError


def choices_of(
    group: Group, determinism: Sequence[str], found: Mapping[str, Sequence[Candidate]]
) -> dict[str, Any]:
    """What decides every choice of a group, as plain values."""
    candidates_for = {
        f"candidates for {operation}": [c.to_json() for c in rows if not c.refused]
        for operation, rows in found.items()
    }
    return {
        "trivet": version("trivet"),
        "torch": torch.__version__,
        "size": group.size,
        "hosts": group.hosts,
        "determinism": list(determinism),
        **candidates_for,
    }


def make(
    group: Group,
    found: Mapping[str, Sequence[Candidate]],
    store: Store,
    agreement: Agreement,
    health: Health,
) -> tuple[list[tuple[str, object]], list[str]]:
    """Make every provider that has anything to do here; all members make the same ones.

    One that cannot be made on some rank is given up on all of them, with the reason.

    Returns:
        What was made, by plugin, in order; and a sentence for each that was given up.
    """
    wanted: dict[type, list[Candidate]] = {}
    for rows in found.values():
        for one in rows:
            if not one.refused:
                wanted.setdefault(one.source.provider, []).append(one)
    sessions: list[tuple[str, object]] = []
    refused: list[str] = []
    for number, (provider, mine) in enumerate(wanted.items()):
        source = mine[0].source
        session, why = _try(source, group, prefixed(f"vendor/{number}/", store), health)
        try:
            records = agreement.exchange({"operation": "making providers", "why": why})
        except CommError:
            give_up([*sessions, (source.plugin, session)])
            raise
        whys = [f"rank {rank}: {r['why']}" for rank, r in enumerate(records) if r["why"]]
        if whys:
            give_up([(source.plugin, session)])
            reason = "; ".join(whys)
            refused.append(f"{source.plugin}: {provider.__qualname__} cannot be made: {reason}")
            LOG.warning("%s: %s", health.where, refused[-1])
            for one in mine:
                one.refused = f"it cannot be made: {reason}"
            continue
        sessions.append((source.plugin, session))
        for one in mine:
            one.function = getattr(session, one.claim.method)
    return sessions, refused


def _try(source: Source, group: Group, store: Store, health: Health) -> tuple[object, str]:
    try:
        return source.make(group, store), ""
    except Exception as error:  # noqa: BLE001 - code of a vendor: named, and told to all ranks
        said = meaning(error, source.plugin).what
        LOG.debug("%s: %s", health.where, said, exc_info=error)
        return None, said


def give_up(sessions: Iterable[tuple[str, object]]) -> None:
    """Closes providers that nobody will use."""
    for _, session in sessions:
        if isinstance(session, Closable):
            session.close()
