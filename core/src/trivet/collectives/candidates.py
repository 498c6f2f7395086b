"""Who could make each operation of a group: everybody's claims, in order, each with a reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trivet.contracts.collectives import OPERATIONS, REDUCING, Group, offers_of, provides
from trivet.contracts.terms import UNKNOWN, Layout, Term
from trivet.errors import UnknownName
from trivet.selection.authority import COLLECTIVES, Policy, orders
from trivet.settings import likely

LOG: Final = logging.getLogger("trivet.collectives")

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A provider class and whose it is.

    Args:
        plugin: the first part of its ids.
        provider: the class; its marks are read before it is made.
        make: makes it for the group.
        version: of what it came with, for the agreement of the ranks.
        name: what its ids end with instead of the names of its marks; empty keeps those.
    """

    plugin: str
    provider: type
    make: Callable[..., object]
    version: str = ""
    name: str = ""


@dataclass
class Candidate:
    """One claim of one provider, as far as this group is concerned.

    Args:
        id: ``plugin/name``.
        claim: the mark.
        source: where it comes from.
        said: which order list moved it.
        refused: why it is never chosen in this group; empty where it may be.
        function: the method, once the provider was made.
    """

    id: str
    claim: provides
    source: Source
    said: str = ""
    refused: str = ""
    function: Callable[..., Any] | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """What ranks must have in common, as plain values."""
        return {
            "provider": self.id,
            "version": self.source.version,
            "domain": [str(term) for term in self.claim.domain],
        }

    def lacks(self, wanted: Iterable[str]) -> str:
        """Which level of determinism it does not reach; empty where it reaches all."""
        claimed = self.claim.determinism
        if self.claim.operation not in REDUCING or "order" in claimed:
            return ""
        missing = [level for level in wanted if level not in claimed]
        return f"determinism {', '.join(missing)} is not claimed" if missing else ""


class Known:
    """Facts as domain terms read them."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def value(self, path: str) -> Any:
        """The value of a path, or UNKNOWN; memory that nobody knows of is not exportable."""
        return self._facts.get(path, False if path.startswith("memory.") else UNKNOWN)

    def layout(self, arg: str) -> Layout | None:
        """No tensor of a collective has a layout that matters: all are flat."""
        del arg
        return None

    def inner(self, arg: str) -> int:
        """The same."""
        del arg
        return 0


def unmet(domain: Iterable[Term], facts: Facts) -> str:
    """Why a domain excludes these facts; empty where it does not, or they do not say."""
    view = Known(facts)
    for term in domain:
        answer = term.decide(view)
        if isinstance(answer, str):
            return answer
    return ""


def group_facts(group: Group, exportable: Iterable[str]) -> dict[str, Any]:
    """What holds for a group, by the names of ``FACTS``."""
    everywhere = bool(group.reach) and all(
        group.reach[a][b] for a in range(group.size) for b in range(group.size) if a != b
    )
    return {
        "size": group.size,
        "hosts": group.hosts,
        "local": max(Counter(member.host for member in group.members).values()),
        "p2p": everywhere,
        "device": group.device.type,
        **{f"memory.{kind}": True for kind in exportable},
    }


def candidates(
    sources: Sequence[Source],
    policy: Policy,
    facts: Facts,
    determinism: Sequence[str],
    *,
    nested: bool = False,
) -> dict[str, list[Candidate]]:
    """Every claim by operation, best first; those that this group excludes stay in their place.

    Args:
        sources: in default order.
        policy: order lists and what is forbidden.
        facts: those of the group.
        determinism: levels that reductions must reach.
        nested: order lists are those of a group around this one, and may name others.

    Raises:
        UnknownName: an order list names no operation or provider.
    """
    every: dict[str, list[Candidate]] = {operation: [] for operation in OPERATIONS}
    for source in sources:
        for claim in offers_of(source.provider):
            name = f"{source.plugin}/{source.name or claim.name}"
            every[claim.operation].append(Candidate(name, claim, source))
    if not nested:
        _check_names(policy, every)
    for operation, found in every.items():
        key = COLLECTIVES + operation
        ids = list(dict.fromkeys(c.id for c in found))
        ranked, said = policy.rank(key, ids)
        forbidden = policy.settings.forbidden(key)
        found.sort(key=lambda c: ranked.index(c.id))
        for one in found:
            one.said = said.get(one.id, "")
            if one.id in forbidden:
                one.refused = f"forbidden by {forbidden[one.id]}"
            elif one.claim.on_request and not one.said:
                one.refused = "only where an order list names it"
            else:
                one.refused = unmet(one.claim.domain, facts) or one.lacks(determinism)
    return every


def _check_names(policy: Policy, every: Mapping[str, Sequence[Candidate]]) -> None:
    lists = [policy.argument, *policy.context, *policy.settings.orders.values()]
    for given in lists:
        for key, ids in given.items():
            if not key.startswith(COLLECTIVES):
                continue
            operation = key.removeprefix(COLLECTIVES)
            if operation not in every:
                msg = f"an order list names no operation of groups: {key!r}"
                raise UnknownName(msg, fix=likely(operation, every))
            known = {c.id for c in every[operation]}
            for name in ids:
                if name not in known:
                    msg = f"an order list of {key} names no provider: {name!r}"
                    raise UnknownName(msg, fix=likely(name, sorted(known)))


def preferred(given: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Order lists by operation, with the prefix under which policies know them."""
    return {COLLECTIVES + name: ids for name, ids in orders(given).items()}
