"""Operations of a group on several machines: within each one first, then between their leaders.

Within a machine a plugin's providers do the work, shared memory for example; between machines it
is gloo, and compositions over it. The leader of a machine is its first member. Sums are made in
order of rank within a machine, then in order of machines, accumulated in float32 where the dtype is
narrower, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

from trivet.collectives.agreement import Agreement, prefixed
from trivet.collectives.arithmetic import wide
from trivet.collectives.candidates import Source
from trivet.collectives.composed import SMALL, Composed
from trivet.collectives.health import Health
from trivet.collectives.native import gloo
from trivet.collectives.nested import Inner, Nested
from trivet.collectives.stock import Gloo
from trivet.contracts.collectives import Group, Store, provides
from trivet.contracts.terms import Term, between
from trivet.errors import CommError, CommUnsupported

_SEVERAL: Final[tuple[Term, ...]] = (between("hosts", 2, None), between("local", 2, None))
_LEVELS: Final = ("run", "ranks", "slice")
_NEEDED: Final = ("reduce", "broadcast", "gather", "scatter", "barrier")
_LEADER: Final = 0


class Hierarchical:
    """The members of a group, by machine.

    Args:
        group: the group.
        store: its own part of a store.
        brought: what plugins bring, best first.
        inner: what the groups of each machine have from this one.

    Raises:
        CommUnsupported: on some machine nobody but torch could make what is needed.
    """

    def __init__(self, group: Group, store: Store, brought: Sequence[Source], inner: Inner) -> None:
        self._group = group
        hosts = list(dict.fromkeys(member.host for member in group.members))
        self._hosts = [[r for r, m in enumerate(group.members) if m.host == h] for h in hosts]
        self._mine = next(h for h, ranks in enumerate(self._hosts) if group.rank in ranks)
        self._most = max(map(len, self._hosts))
        self._local: Nested | None = None
        self._leaders: Nested | None = None
        why = ""
        try:
            self._local = self._on_this_machine(store, brought, inner)
        except CommError as error:
            why = error.what
        self._agree(store, why)  # before leaders wait for each other
        if self._leads:
            self._leaders = self._between_machines(store, inner)

    @property
    def _leads(self) -> bool:
        return self._hosts[self._mine][_LEADER] == self._group.rank

    def _part(self, name: str, ranks: list[int]) -> Group:
        outer = self._group
        return replace(
            outer,
            name=f"{outer.name}/{name}",
            rank=ranks.index(outer.rank),
            members=tuple(outer.members[r] for r in ranks),
            reach=tuple(tuple(outer.reach[a][b] for b in ranks) for a in ranks if outer.reach),
            token=f"{outer.token}{name}",
        )

    def _on_this_machine(self, store: Store, brought: Sequence[Source], inner: Inner) -> Nested:
        group = self._part(f"machine{self._mine}", self._hosts[self._mine])

        def sources(start: Any) -> list[Source]:
            return [*brought, Source("composed", Composed, lambda g, _: Composed(g, start))]

        nested = Nested(self._group, group, prefixed(f"{self._mine}/", store), sources, inner)
        others = {name: nested.plugin(name) for name in _NEEDED if group.size > 1}
        torch_only = [name for name, plugin in others.items() if plugin in {"", "composed"}]
        if torch_only:
            nested.close()
            raise CommUnsupported(
                f"{group.name}: no plugin makes {', '.join(torch_only)}",
                fix="torch makes the operations of the whole group",
            )
        return nested

    def _between_machines(self, store: Store, inner: Inner) -> Nested:
        leaders = [ranks[_LEADER] for ranks in self._hosts]
        group = self._part("machines", leaders)
        own = prefixed("leaders/", store)
        backend = gloo(own, group.rank, group.size, group.timeout)

        def sources(start: Any) -> list[Source]:
            return [
                Source("torch", Gloo, lambda g, _: Gloo(g, backend), torch.__version__, "gloo"),
                Source("composed", Composed, lambda g, _: Composed(g, start)),
            ]

        return Nested(self._group, group, own, sources, inner)

    def _agree(self, store: Store, why: str) -> None:
        group = self._group
        health = Health(f"group {group.name}")
        waiting = timedelta(seconds=group.timeout)
        agreement = Agreement(prefixed("all/", store), group.rank, group.size, waiting, health)
        records = agreement.exchange({"operation": "meeting on each machine", "why": why})
        if whys := [str(record["why"]) for record in records if record["why"]]:
            self.close()
            raise CommUnsupported(whys[0])

    # --- operations --------------------------------------------------------------------------

    @provides("all_reduce", name="hierarchical", determinism=_LEVELS, domain=_SEVERAL)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """Reduce on each machine, between leaders, and tell the others."""
        x = _widened(inp, reduction)
        total = x if x is not inp else torch.empty_like(inp)
        part = torch.empty_like(x) if self._leads else x.new_empty(0)
        self._here("reduce", x, reduction, part, x, reduction, _LEADER)
        if self._leaders is not None:
            self._leaders.do("all_reduce", part, reduction, total, part, reduction)
            out.copy_(total)
        self._tell(out)

    @provides("reduce_scatter", name="hierarchical", determinism=_LEVELS, domain=_SEVERAL)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """Reduce on each machine; leaders get the rows of theirs and share them out."""
        x, n = _widened(inp, reduction), out.numel()
        part = torch.empty_like(x) if self._leads else x.new_empty(0)
        self._here("reduce", x, reduction, part, x, reduction, _LEADER)
        mine = inp.new_empty(0)
        if self._leaders is not None:
            rows, each = part.view(self._group.size, n), self._most * n
            by_machine = part.new_zeros(len(self._hosts), self._most, n)
            for host, ranks in enumerate(self._hosts):
                by_machine[host, : len(ranks)].copy_(rows[ranks])
            total, given = part.new_empty(each), by_machine.view(-1)
            self._leaders.do("reduce_scatter", given, reduction, total, given, reduction)
            mine = total[: len(self._hosts[self._mine]) * n].to(inp.dtype)
        flat = out.view(torch.uint8)
        self._here("scatter", flat, "", flat, mine.view(torch.uint8), _LEADER)

    @provides("all_gather", name="hierarchical", domain=[*_SEVERAL, between("nbytes", 0, SMALL)])
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        """Gather on each machine, between leaders, and tell the others."""
        n, size = inp.numel(), len(self._hosts[self._mine])
        part = inp.new_empty(size * n if self._leads else 0)
        self._here("gather", inp, "", part, inp, _LEADER)
        if self._leaders is not None:
            given = inp.new_zeros(self._most * n)
            given[: size * n].copy_(part)
            every = inp.new_empty(len(self._hosts), self._most, n)
            self._leaders.do("all_gather", given, "", every.view(-1), given)
            rows = out.view(self._group.size, n)
            for host, ranks in enumerate(self._hosts):
                rows[ranks] = every[host, : len(ranks)]
        self._tell(out)

    @provides("broadcast", name="hierarchical", domain=_SEVERAL)
    def broadcast(self, x: Tensor, root: int) -> None:
        """On the root's machine first, then between leaders, then on the others."""
        host = next(h for h, ranks in enumerate(self._hosts) if root in ranks)
        if host == self._mine:
            self._here("broadcast", x, "", x, self._hosts[host].index(root))
        if self._leaders is not None:
            self._leaders.do("broadcast", x, "", x, host)
        if host != self._mine:
            self._tell(x)

    @provides("barrier", name="hierarchical", domain=_SEVERAL)
    def barrier(self) -> None:
        """On each machine, between leaders, on each machine."""
        nothing = torch.empty(0, dtype=torch.uint8, device=self._group.device)
        self._here("barrier", nothing, "")
        if self._leaders is not None:
            self._leaders.do("barrier", nothing, "")
        self._here("barrier", nothing, "")

    def _tell(self, x: Tensor) -> None:
        """From the leader to the other members on its machine."""
        flat = x.view(torch.uint8)
        self._here("broadcast", flat, "", flat, _LEADER)

    def _here(self, operation: str, x: Tensor, reduction: str, *arguments: Any) -> None:
        """An operation of the members on this machine."""
        if self._local is not None:
            self._local.do(operation, x, reduction, *arguments)

    # --- its life ----------------------------------------------------------------------------

    def abort(self) -> None:
        """End what is under way, from any thread."""
        for nested in (self._local, self._leaders):
            if nested is not None:
                nested.abort()

    def close(self) -> None:
        """Give everything back."""
        for nested in (self._local, self._leaders):
            if nested is not None:
                nested.close()


def _widened(x: Tensor, reduction: str) -> Tensor:
    """Partial results are not rounded."""
    return x.to(wide(x.dtype)) if reduction in {"sum", "prod"} else x
