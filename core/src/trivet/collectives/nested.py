"""A group inside of a group: some of its members, with candidates and providers of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import Tensor

from trivet.collectives.agreement import Agreement, prefixed
from trivet.collectives.candidates import LOG, Source, candidates, group_facts
from trivet.collectives.health import Health
from trivet.collectives.making import choices_of, give_up, make
from trivet.collectives.place import ended
from trivet.collectives.table import Table, bound, digest
from trivet.contracts.collectives import UNSIZED, Group, Lifecycle, Store, Work
from trivet.errors import CommError
from trivet.selection.authority import Policy

Sources = Callable[[Callable[..., Work | None]], Sequence[Source]]
"""Provider classes in default order, given what starts a part of a composition."""


@dataclass(frozen=True)
class Inner:
    """What a nested group has from the one around it.

    Args:
        policy: order lists and what is forbidden.
        exportable: how ordinary tensors of all members are exportable.
    """

    policy: Policy
    exportable: tuple[str, ...] = ()


class Nested:
    """A nested group; all its members make it.

    Args:
        outer: the group around it.
        group: it.
        store: its own part of a store.
        sources: who may make its operations.
        inner: what it has from the group around it.

    Raises:
        CommError: its members would choose differently, or one did not come.
    """

    def __init__(
        self, outer: Group, group: Group, store: Store, sources: Sources, inner: Inner
    ) -> None:
        places = {member.rank: position for position, member in enumerate(outer.members)}
        self.group = group
        self._positions = [places[member.rank] for member in group.members]
        health = Health(f"group {group.name}")
        waiting = timedelta(seconds=group.timeout)
        agreement = Agreement(prefixed("agree/", store), group.rank, group.size, waiting, health)
        agreement.lost = lambda: ended(group)
        facts, levels = group_facts(group, inner.exportable), ("order",)
        found = candidates(sources(self.start), inner.policy, facts, levels, nested=True)
        table = digest(choices_of(group, levels, found))
        agreement.agree({"operation": f"choosing for {group.name}", "table": table})
        self._sessions, _ = make(group, found, store, agreement, health)
        self._table = Table(health.where, found, facts)

    def plugin(self, operation: str) -> str:
        """Whose the first candidate for an operation is; empty where there is none."""
        rows = self._table.candidates[operation]
        return next((one.source.plugin for one in rows if not one.refused), "")

    def start(self, operation: str, x: Tensor, reduction: str, *arguments: Any) -> Work | None:
        """Start an operation; ``x`` is the tensor whose dtype and bytes decide who makes it."""
        nbytes = 0 if operation in UNSIZED else x.nbytes
        work: Work | None = bound(self._table.find(operation, x.dtype, reduction, nbytes))(
            *arguments
        )
        return work

    def do(self, operation: str, x: Tensor, reduction: str, *arguments: Any) -> None:
        """Make an operation.

        Raises:
            CommError: its ranks are those of the group around this one.
        """
        try:
            work = self.start(operation, x, reduction, *arguments)
            if work is not None:
                work.wait()
        except CommError as error:
            said = copy.copy(error)
            said.what = f"{operation} of {self.group.name}: {error.what}"
            known = range(len(self._positions))
            said.ranks = tuple(self._positions[r] for r in error.ranks if r in known)
            raise said from error

    def abort(self) -> None:
        """End what is under way, from any thread."""
        for plugin, session in self._sessions:
            if isinstance(session, Lifecycle):
                try:
                    session.abort()
                except Exception as error:  # noqa: BLE001 - of a vendor; the group has failed
                    LOG.warning("%s: abort of %s: %s", self.group.name, plugin, error)

    def close(self) -> None:
        """Give everything back."""
        give_up(self._sessions)
