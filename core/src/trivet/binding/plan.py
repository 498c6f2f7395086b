"""Plans: every call site of an engine bound once, immutable, explained and locked."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from trivet.binding.binder import Binder, Prefer, announce, finish
from trivet.binding.made_under import changes, snapshot
from trivet.binding.observe import Counts
from trivet.binding.prepared import Handle, prepare
from trivet.binding.step import SemanticStep, Step, no_site
from trivet.binding.step_tables import Site, Tables, is_word, refuse_reserved
from trivet.contracts.names import need_names
from trivet.contracts.version import CONTRACT
from trivet.errors import DomainError, NoImplementation, OrderError, UnknownName
from trivet.plugins.verification import Implementation, reference
from trivet.selection import lock as locks
from trivet.selection.authority import Policy
from trivet.selection.choose import Choice, Row, Trace
from trivet.settings import Settings, read

Sites = Mapping[str, tuple[str, Mapping[str, Any]]]


class Plan:
    """Every site of an engine, bound; made by ``device.plan``, never changed afterwards."""

    def __init__(
        self,
        binder: Binder,
        sites: Sites,
        settings: Settings,
        *,
        locked: Mapping[str, Any] | None = None,
        prefer: Prefer = MappingProxyType({}),
        mode: str,
        observe: bool,
        packs: int,
    ) -> None:
        need_names(sites, "sites are a mapping", 'write {NAME: ("operator", {facts})}', object)
        refuse_reserved(sites, {"at", "mode", "sites", *dir(Plan), *dir(Step)})
        for name, row in sites.items():
            if not _is_row(row):
                msg = f"site {name!r} is {row!r}"
                raise UnknownName(msg, fix='write NAME: ("operator", {facts})')
        if packs not in {0, 1}:
            msg = f"packs={packs!r}"
            raise UnknownName(msg, fix="0 (one for each provider that a step can choose) or 1")

        def policy(site: str) -> Policy:
            order = locks.order(locked, site)
            return binder.policy(prefer=prefer, lock=order, mode=mode, settings=settings)

        base = policy("")
        _refuse_lacking(binder, {n: target for n, (target, _) in sites.items()}, base)
        self.mode = mode
        self._info = binder.info
        self.settings = settings
        self._counts = Counts() if observe or settings.trace else None
        self.sites: Mapping[str, Site] = MappingProxyType(
            {
                n: _site(binder, n, t, f, policy(n) if locked else base, packs)
                for n, (t, f) in sites.items()
            }
        )
        self._snapshot = snapshot(settings, binder.plugins)
        tables = Tables.over(list(self.sites.values()))
        self._narrowed = {s.name: list(tables.narrowed(s)) for s in self.sites.values()}
        self._refuse_guarded_packs()
        self._tables = self._bind(tables)
        self._identity = self._state()
        self.at: Callable[..., Step] = tables.lookup(self._tables)
        self.__dict__.update({n: self._tables[tables.keys[0]].__dict__[n] for n in self.sites})
        self._made = True
        for site in self.sites.values():
            announce(f"{site.name}: {site.target}", site.choice)

    def __setattr__(self, name: str, value: object) -> None:
        if "_made" in self.__dict__:
            msg = f"a plan is shared and never changes: {name!r} cannot be set"
            raise TypeError(msg)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        msg = f"no site {name!r}; this plan has {', '.join(self.__dict__.get('sites', ()))}"
        raise AttributeError(msg)

    def __repr__(self) -> str:
        return f"<plan {self.digest} of {len(self.sites)} sites on {self._info.kind}, {self.mode}>"

    def _bind(self, tables: Tables) -> dict[Any, Step]:
        functions: dict[str, dict[Any, Callable[..., Any]]] = {}
        for name, outcomes in self._narrowed.items():
            made: dict[int, Callable[..., Any]] = {}
            for key, choice, decided in outcomes:
                if id(choice) not in made:
                    made[id(choice)] = finish(
                        choice, name, self.settings, self._counts, decided=decided, mode=self.mode
                    )
                functions.setdefault(name, {})[key] = made[id(choice)]
        choices = {n: {k: c for k, c, _ in o} for n, o in self._narrowed.items()}
        return {
            key: Step({n: choices[n][key] for n in self.sites},
                      {n: functions[n][key] for n in self.sites})
            for key in tables.keys
        }  # fmt: skip

    def _refuse_guarded_packs(self) -> None:
        for name, site in self.sites.items():
            if site.choice.operator.prepare is None:
                continue
            for key, choice, _ in self._narrowed[name]:
                if None not in key and choice.arms and not choice.settled:
                    terms = " and ".join(map(str, choice.arms[0].terms))
                    msg = f"site {name!r} takes a prepared weight and is still guarded on {terms}"
                    raise OrderError(msg, fix="state these as facts of the site")

    def prepare(
        self,
        site: str,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        account: Callable[[Tensor, str], object] | None = None,
    ) -> Handle:
        """Prepares a weight for each provider that some step of the site can choose.

        Args:
            site: name of a site whose operator takes a prepared weight.
            weight: ``[out_features, in_features]``; not copied, so do not write it later.
            bias: ``[out_features]`` or None.
            account: is told every tensor that the handle holds and its tag, ``"weights"`` for the
                weight as given and ``"packs"`` for what was made of it: ``dev.memory.account``.

        Raises:
            OutOfMemory: the ledger behind ``account`` has a limit that the packs exceed.
            OrderError: the site's operator takes no prepared weight, or there is no such site.
            DomainError: it is no tensor.
        """
        found = self.sites.get(site)
        if found is None or found.choice.operator.prepare is None:
            msg = f"{site!r} is no site with a prepared weight"
            raise OrderError(msg, fix="prepare at a site of an operator on packs (linear_packed)")
        for what, given in (("weight", weight), ("bias", bias)):
            if not isinstance(given, Tensor) and (what == "weight" or given is not None):
                msg = f"site {site!r}: the {what} is a {type(given).__name__}, no tensor"
                raise DomainError(msg, fix="plan.prepare(site, weight, bias)")
        chosen: dict[str, Implementation] = {}
        for key, choice, _ in self._narrowed[site]:
            if None not in key and choice.arms:
                arm = choice.arms[0]
                chosen.setdefault(arm.provider, arm.implementation)
        handle = prepare(site, chosen, dict(found.choice.facts.values), weight, bias)
        if account is not None:
            for tensor in handle.tensors():
                account(tensor, "weights" if tensor is weight else "packs")
        return handle

    def semantic(self) -> SemanticStep:
        """The plan under which programs are exported: every site is the operator's reference."""
        return SemanticStep(self.sites)

    def explain(self, site: str) -> Trace:
        """Every candidate of a site in order: yes, guarded on what, or no and why."""
        if site not in self.sites:
            raise no_site(site, self.sites)
        return Trace(self.sites[site].choice.rows)

    def counts(self) -> dict[tuple[str, str], int]:
        """Calls by (site, provider).

        Raises:
            OrderError: the plan was made without ``observe=True``.
        """
        if self._counts is None:
            msg = "this plan does not observe"
            raise OrderError(msg, fix="make it with observe=True, or under TRIVET_TRACE=1")
        return self._counts.table()

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The lock document: what was chosen, from what, with which versions."""
        document: dict[str, Any] = {
            "schema": locks.SCHEMA,
            "trivet": version("trivet"),
            "contract": CONTRACT,
            "torch": torch.__version__,
            "device": {
                "kind": self._info.kind,
                "name": self._info.name,
                "arch": list(self._info.arch),
            },
            "plugins": self._chosen_plugins(),
            "numerics": dict(self._snapshot["numerics"]),
            "sites": {
                n: locks.site_document(s.choice, self.mode, s.variables)
                for n, s in self.sites.items()
            },
        }
        if tuned := self._snapshot["settings"]["tuned"]:
            document["tuned"] = tuned  # digest of the tables that TRIVET_TUNED names
        return document | {"digest": locks.digest(document)}

    def _chosen_plugins(self) -> dict[str, object]:
        """The plugins whose code some step may run -> distribution and version."""
        arms = [arm for site in self.sites.values() for arm in site.choice.arms]
        names = {arm.provider.partition("/")[0] for arm in arms}
        return {n: home for n, home in self._snapshot["plugins"].items() if n in names}

    @property
    def digest(self) -> str:
        """Sixteen hex digits over the lock document: part of every compile-cache key."""
        return str(self.lock["digest"])

    def save_lock(self, path: str | Path) -> None:
        """Writes the lock file (``trivet.lock.json``)."""
        locks.save(self.lock, Path(path))

    def stale(self) -> list[str]:
        """What changed since the plan was made, one line each; the plan itself never changes."""
        return changes(self._snapshot, snapshot(read()))

    def interned(self) -> Plan:
        """The plan of this process that equals this one; observed plans are one of a kind."""
        with _lock:
            if self._counts is not None:
                return self
            return _plans.setdefault(self._identity, self)

    def _state(self) -> Hashable:
        """Everything that tells two plans apart: sites, functions, and what they were made under.

        The digest would not do: two devices may bring equal files. Nor is it needed, and it reads
        every source file.
        """
        sites = tuple(
            (s.name, s.target, s.choice.facts.key, tuple(sorted(s.variables.items())))
            for s in self.sites.values()
        )
        arms = tuple((a.provider, a.terms) for s in self.sites.values() for a in s.choice.arms)
        functions = tuple(step.__dict__[n] for step in self._tables.values() for n in self.sites)
        under = (self.mode, repr(self._info), self.settings.check, repr(self._snapshot))
        return sites, arms, functions, under

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._identity == other._identity


_plans: WeakValueDictionary[Hashable, Plan] = WeakValueDictionary()
_lock = threading.Lock()


def _is_row(row: object) -> bool:
    """Whether it is an operator and a mapping of facts."""
    return isinstance(row, (tuple, list)) and len(row) == 2 and isinstance(row[1], Mapping)


def _refuse_lacking(binder: Binder, sites: Mapping[str, str], policy: Policy) -> None:
    """Refuses a plan whose required properties some operators cannot offer, naming all of them.

    Raises:
        NoImplementation: one line an operator.
    """
    if not policy.required:
        return
    without = []
    for name in dict.fromkeys(sites.values()):
        op, _ = binder.target(name)
        declared = [set(reference(op).claim.properties)] + [
            set(i.claim.properties) for i in binder.implementations if i.operator is op
        ]
        if not any(policy.required <= have for have in declared):
            without.append(op.name)
    if without:
        wanted = ", ".join(sorted(policy.required))
        msg = f"no implementation declares {wanted} for: {', '.join(without)}"
        raise NoImplementation(msg, fix="require less, or install a package that declares it")


def _site(
    binder: Binder, name: str, target: str, facts: Mapping[str, Any], policy: Policy, packs: int
) -> Site:
    op, _ = binder.target(target)
    named = {d: v for d, v in facts.items() if isinstance(v, str) and op.is_size(d)}
    for dim, variable in named.items():
        if not is_word(variable):
            msg = f"site {name!r}: {dim!r} cannot be the step variable {variable!r}"
            raise UnknownName(msg, fix="a step variable is a keyword of plan.at(...)")
    static = {k: v for k, v in facts.items() if k not in named}
    choice = binder.choose(target, static, policy, site=True, varying=named)
    if packs == 1 and op.prepare is not None:
        choice = _without_guards(choice, name)
    return Site(name, target, choice, MappingProxyType(named))


def _without_guards(choice: Choice, site: str) -> Choice:
    """The choice with the arms alone that every step and call can take."""
    guarded = {a.provider for a in choice.arms if a.terms}
    rows = tuple(
        Row(r.provider, "no", f"packs=1 takes no guarded provider ({r.reason})", r.note)
        if r.provider in guarded
        else r
        for r in choice.rows
    )
    if not (arms := tuple(a for a in choice.arms if not a.terms)):
        msg = f"site {site!r}: packs=1 leaves no provider"
        raise NoImplementation(msg, trace=rows, fix="state the sizes as facts, or leave packs=1")
    return dataclasses.replace(choice, arms=arms, rows=rows)
