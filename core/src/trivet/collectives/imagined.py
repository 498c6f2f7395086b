"""The table of a group that does not exist: who would make what, without any other process."""

from __future__ import annotations

import torch

from trivet import settings
from trivet.collectives.assembly import Brought, sources_of
from trivet.collectives.candidates import candidates, group_facts
from trivet.collectives.table import Table
from trivet.contracts.collectives import Group, Member
from trivet.selection.authority import Policy, current_context


def imagine(
    device: torch.device,
    parts: Brought,
    size: int,
    hosts: int,
    backend: str,
    determinism: tuple[str, ...] = (),
) -> Table:
    """What a group of so many members on so many machines would choose with these settings.

    No provider is made: one that could not be is not known here. Direct reach between devices
    counts as absent.

    Raises:
        UnknownName: an order list names no operation or provider.
    """
    each = -(-size // hosts)
    members = tuple(Member(r, f"machine {r // each}", 0, str(device)) for r in range(size))
    group = Group("imagined", 0, members, device, 0.0)
    exportable = sorted(parts.traits.traits().exportable) if parts.traits else ()
    policy = Policy(settings.read(), context=current_context()[0])
    facts = group_facts(group, exportable)
    found = candidates(sources_of(parts, backend), policy, facts, determinism)
    return Table("an imagined group", found, facts)
