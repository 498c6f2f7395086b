"""A group is made: its members describe themselves, agree on every choice, make the providers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from types import FunctionType
from typing import Any, Final, cast

import torch

from trivet import settings
from trivet.collectives import lock as locks
from trivet.collectives.agreement import FAILED, Agreement, Record
from trivet.collectives.candidates import Candidate, Source, candidates, group_facts
from trivet.collectives.composed import Composed
from trivet.collectives.diagnosis import Diagnosis
from trivet.collectives.health import Health
from trivet.collectives.hierarchical import Hierarchical
from trivet.collectives.launch import Launcher
from trivet.collectives.making import choices_of, make
from trivet.collectives.nested import Inner
from trivet.collectives.place import ended, member
from trivet.collectives.recorder import Recorder
from trivet.collectives.stock import Gloo, stock_class
from trivet.collectives.table import Table, digest
from trivet.contracts.collectives import (
    Group,
    Member,
    Store,
    Symmetric,
)
from trivet.contracts.memory import Traits
from trivet.contracts.topology import TensorTraits, Topology
from trivet.errors import CommError, GroupMismatch, PluginBroken, TrivetError
from trivet.plugins.answers import has_abilities
from trivet.selection.authority import Policy
from trivet.topology import kept
from trivet.topology.merge import in_list

STOCK: Final = "torch"
COMPOSED: Final = "composed"


@dataclass(frozen=True)
class Brought:
    """What the plugins of a device bring for its groups.

    Args:
        sources: provider classes, best first.
        topology: who knows how devices are connected, if anybody does.
        traits: who knows what holds for ordinary tensors, if anybody does.
    """

    sources: tuple[Source, ...] = ()
    topology: Topology | None = None
    traits: TensorTraits | None = None


def brought(provided: Mapping[str, object], versions: Mapping[str, str]) -> Brought:
    """Sorts what ``trivet_collectives`` of each plugin returned.

    Raises:
        PluginBroken: a part of it is neither a provider class nor one of the other abilities.
    """
    sources: list[Source] = []
    topology: Topology | None = None
    traits: TensorTraits | None = None
    for plugin, given in provided.items():
        answer = given() if isinstance(given, FunctionType) else given
        for part in in_list(answer):
            if isinstance(part, type):
                sources.append(Source(plugin, part, part, versions.get(plugin, "")))
            elif has_abilities(part, Topology):
                topology = topology or cast("Topology", part)
            elif has_abilities(part, TensorTraits):
                traits = traits or cast("TensorTraits", part)
            else:
                raise PluginBroken(
                    f"the collectives that plugin {plugin} brings have {type(part).__qualname__} "
                    "in them, no provider class",
                    fix="return a class whose methods are marked with provides, or None",
                )
    return Brought(tuple(sources), topology, traits)


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a group will be, on this rank.

    Args:
        name: what errors call it.
        rank: position of this process.
        ranks: the members' ranks in the world.
        device: where the tensors lie.
        backend: the process group of torch, or one of its backends.
        backend_name: how torch calls it.
        store: the group's own part of a store.
        timeout: seconds that a call may wait.
        check: compare every call across ranks.
        policy: order lists and what is forbidden.
        determinism: levels that reductions must reach.
        lock: what the choices must agree with, or None.
        dissolve: gives torch's group back.
    """

    name: str
    rank: int
    ranks: tuple[int, ...]
    device: torch.device
    backend: Any
    backend_name: str
    store: Store
    timeout: float
    check: bool
    policy: Policy
    determinism: tuple[str, ...] = ()
    lock: locks.Lock = None
    dissolve: Callable[[], None] = field(default=lambda: None)


def assemble(plan: Plan, parts: Brought) -> Launcher:
    """Make a group; all members do, and all get it or all get an error.

    Raises:
        GroupMismatch: members would choose differently.
        CommTimeout: a member did not come in time.
        TrivetError: this rank, or another, cannot make it.
    """
    health = Health(f"group {plan.name}")
    waiting = timedelta(seconds=plan.timeout)
    agreement = Agreement(plan.store, plan.rank, len(plan.ranks), waiting, health)
    group, exportable = _meet(plan, parts, agreement)
    launcher: list[Launcher] = []

    def start_part(*arguments: Any) -> Any:
        return launcher[0].parts(*arguments)

    sources = sources_of(
        parts, plan.backend_name, plan.backend, start_part, Inner(plan.policy, exportable)
    )
    agreement.lost = lambda: ended(group)
    found = _choose(plan, group, sources, agreement, exportable)
    choices = choices_of(group, plan.determinism, found)
    sessions, refused = make(group, found, plan.store, agreement, health)
    _only_one_symmetric(found, sessions)
    table = Table(health.where, found, group_facts(group, exportable))
    recorder = Recorder(group, health, plan.policy.settings.comm_dump)
    launcher.append(
        Launcher(
            group, table, agreement, health, recorder, Diagnosis(group, plan.store), plan.check,
            sessions, plan.dissolve, locks.made(choices), refused=refused,
        )
    )  # fmt: skip
    return launcher[0]


def sources_of(
    parts: Brought,
    backend_name: str,
    backend: Any = None,
    start_part: Callable[..., Any] = lambda: None,
    inner: Inner | None = None,
) -> list[Source]:
    """Every provider class in default order: plugins', the backend of torch, compositions.

    Gloo knows nothing of machines: where plugins bring something for those of one machine, what is
    composed of that comes before it.
    """
    stock = stock_class(backend_name)

    def make_stock(group: Group, _: Store) -> object:
        return stock(group, backend)

    def compose(group: Group, _: Store) -> object:
        return Composed(group, start_part)

    def make_hierarchy(group: Group, store: Store) -> object:
        given = inner or Inner(Policy(settings.read()))
        return Hierarchical(group, store, parts.sources, given)

    own = version("trivet")
    by_machine = [Source(COMPOSED, Hierarchical, make_hierarchy, own)]
    return [
        *parts.sources,
        *(by_machine if parts.sources and stock is Gloo else []),
        Source(STOCK, stock, make_stock, torch.__version__, backend_name),
        Source(COMPOSED, Composed, compose, own),
    ]


def _meet(plan: Plan, parts: Brought, agreement: Agreement) -> tuple[Group, tuple[str, ...]]:
    """The group as every member sees it, and how ordinary tensors of all of them are exportable."""
    me = member(plan.ranks[plan.rank], plan.device)
    traits: Traits | None = parts.traits.traits() if parts.traits else None
    records = agreement.exchange(
        {
            "operation": "making the group",
            "member": [me.rank, me.host, me.pid, me.device],
            "token": secrets.token_hex(6),
            "exportable": sorted(traits.exportable) if traits else [],
            "topology": parts.topology is not None,
        }
    )
    members = tuple(Member(*r["member"]) for r in records)  # type: ignore[misc]
    reach: tuple[tuple[bool, ...], ...] = ()
    if parts.topology is not None and all(r["topology"] for r in records):
        rows = agreement.exchange({"reach": _row(parts.topology, members, plan.rank)})
        reach = tuple(tuple(r["reach"]) for r in rows)  # type: ignore[arg-type]
    everywhere = set(records[0]["exportable"])  # type: ignore[call-overload]
    for record in records:
        everywhere &= set(record["exportable"])  # type: ignore[call-overload]
    group = Group(
        plan.name, plan.rank, members, plan.device, plan.timeout, reach, traits,
        str(records[0]["token"]),
    )  # fmt: skip
    return group, tuple(sorted(everywhere))


def _row(topology: Topology, members: Sequence[Member], rank: int) -> list[bool]:
    """Whose memory this member reads: what the vendor claims, less what a kept probe found."""
    me = members[rank]
    mine = torch.device(me.device).index or 0
    named = settings.read().topology
    vetoes = kept(named).vetoes if named is not None else lambda *_: False

    def reaches(one: Member) -> bool:
        theirs = torch.device(one.device)
        other = theirs.index or 0
        known = vetoes(f"{theirs.type}:{mine}", f"{theirs.type}:{other}")
        return not known and topology.reaches(mine, other)

    return [one.host == me.host and (one is me or reaches(one)) for one in members]


def _choose(
    plan: Plan,
    group: Group,
    sources: Sequence[Source],
    agreement: Agreement,
    exportable: Iterable[str],
) -> dict[str, list[Candidate]]:
    """The candidates, on which all members agree."""
    failure: TrivetError | None = None
    document: dict[str, Any] = {}
    found: dict[str, list[Candidate]] = {}
    try:
        facts = group_facts(group, exportable)
        found = candidates(sources, plan.policy, facts, plan.determinism)
        choices = choices_of(group, plan.determinism, found)
        locked = locks.given(plan.lock)
        if locked is not None:
            locks.verify(locked, choices, f"group {plan.name}")
        document = _document(plan, choices, locked)
        record: Record = {"operation": "choosing", "table": digest(document)}
    except TrivetError as error:
        failure = error
        record = {FAILED: error.what}
    try:
        records = agreement.exchange(record)
    except CommError as error:
        if failure is not None:
            raise failure from error
        raise
    if any(other["table"] != record["table"] for other in records):
        _refuse(agreement.exchange(document), f"group {plan.name}")
    return found


def _document(
    plan: Plan, choices: Mapping[str, Any], locked: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What must be the same on every rank, by the words of the error when it is not."""
    lock = locked.get("digest") if locked else "nothing"
    return {"timeout": plan.timeout, "check": plan.check, "lock": lock, **choices}


def _refuse(documents: Sequence[Record], where: str) -> None:
    """Say in what two members differ.

    Raises:
        GroupMismatch: on every rank alike.
    """
    first = documents[0]
    for rank, other in enumerate(documents):
        for name, value in first.items():
            if other.get(name) != value:
                a, b = _differing(value, other.get(name))
                raise GroupMismatch(
                    f"{where}: ranks disagree on {name}: rank 0 has {a}, rank {rank} has {b}",
                    ranks=(0, rank),
                    fix="install the same packages and set the same order lists on every rank",
                )


def _differing(a: Any, b: Any) -> tuple[str, str]:
    """Two values in short: of lists of candidates, their names and the first that differ."""
    if not (isinstance(a, list) and isinstance(b, list)):
        return str(a), str(b)
    if [x["provider"] for x in a] != [x["provider"] for x in b]:
        return _names(a), _names(b)
    pair = next((x, y) for x, y in zip(a, b, strict=True) if x != y)
    return str(pair[0]), str(pair[1])


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(str(row["provider"]) for row in rows)) or "nobody"


def _only_one_symmetric(
    found: Mapping[str, Sequence[Candidate]], sessions: Sequence[tuple[str, object]]
) -> None:
    """Symmetric memory is that of the first provider that has any; others cannot use it."""
    owners = [s for _, s in sessions if isinstance(s, Symmetric)]
    for rows in found.values():
        for one in rows:
            asks = any("symmetric" in term.paths for term in one.claim.domain)
            owner = getattr(one.function, "__self__", None)
            if asks and not one.refused and owner not in owners[:1]:
                one.refused = "the group's symmetric memory is another provider's"
