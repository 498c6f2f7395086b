"""Who may say which provider runs: argument > context > lock > environment > file > plugin.

Everything is an order list: what it names comes first, the rest keeps its order. There are no
priorities as numbers, because vendors would bid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from trivet.contracts.implementation import PROPERTIES
from trivet.contracts.names import need_names
from trivet.errors import ConfigError, UnknownName
from trivet.plugins.verification import REFERENCE
from trivet.settings import Order, Settings, likely

LOCK: Final = "lock"
"""The layer of a lock file; what it names and somebody forbids ends as a mismatch."""

COLLECTIVES: Final = "comm."
"""Before the name of an operation of groups in order lists; those are checked with the group."""

_preferred: ContextVar[tuple[Mapping[str, tuple[str, ...]], ...]] = ContextVar(
    "trivet_preferred", default=()
)
_required: ContextVar[frozenset[str]] = ContextVar("trivet_required", default=frozenset())


def orders(given: Mapping[str, str | Sequence[str]]) -> Mapping[str, tuple[str, ...]]:
    """Order lists as tuples; one provider may be written as plain text.

    Raises:
        UnknownName: it is no mapping, or a list holds something else than text.
    """
    what = "order lists are a mapping from operators"
    need_names(given, what, 'write {"rms_norm": ["plugin/name"]}')
    lists = {k: (v,) if isinstance(v, str) else v for k, v in given.items()}
    for operator, names in lists.items():
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            msg = f"the order list of {operator!r} is {names!r}"
            raise UnknownName(msg, fix=f'write {operator}="plugin/name", or a list of them')
    return MappingProxyType({k: tuple(v) for k, v in lists.items()})


@contextlib.contextmanager
def prefer(**operators: str | Sequence[str]) -> Iterator[None]:
    """Puts providers first for binds and plans made inside: ``prefer(rms_norm="cpu/vec")``."""
    token = _preferred.set((orders(operators), *_preferred.get()))
    try:
        yield
    finally:
        _preferred.reset(token)


@contextlib.contextmanager
def require(*properties: str) -> Iterator[None]:
    """Admits only implementations that declare these properties, for binds made inside.

    Raises:
        UnknownName: no such property.
    """
    token = _required.set(_required.get() | known_properties(properties))
    try:
        yield
    finally:
        _required.reset(token)


def known_properties(properties: Iterable[str]) -> frozenset[str]:
    """The properties as a set, refused when one does not exist."""
    properties = (properties,) if isinstance(properties, str) else tuple(properties)
    for name in properties:
        if name not in PROPERTIES:
            msg = f"no property {name!r}"
            raise UnknownName(msg, fix=f"use one of {', '.join(PROPERTIES)}")
    return frozenset(properties)


@dataclass(frozen=True)
class Policy:
    """Everything besides facts that decides a choice, frozen at one moment.

    Args:
        settings: environment and file.
        argument: order lists given as an argument.
        context: order lists of ``prefer``, innermost first.
        lock: order lists of a lock.
        required: properties that an implementation must declare.
        strict: whether the reference is refused where a vendor's implementation exists.
        mode: eager, compiled, captured or exported.
    """

    settings: Settings
    argument: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    context: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    lock: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    strict: bool = False
    mode: str = "eager"

    def layers(self, operator: str) -> list[Order]:
        """The order lists on an operator, from the highest authority down."""
        found = []
        stack = [("argument", self.argument), *(("prefer()", c) for c in self.context)]
        for source, lists in [*stack, (LOCK, self.lock)]:
            for key in (operator, "*"):
                if key in lists:
                    found.append(Order(lists[key], source))
                    break
        if setting := self.settings.order(operator, self.mode):
            found.append(setting)
        return found

    def rank(self, operator: str, providers: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Providers in order, and for each that a list moved, who said so.

        Raises:
            ConfigError: a provider is forced and forbidden at once.
        """
        forbidden = self.settings.forbidden(operator)
        ranked: list[str] = []
        said: dict[str, str] = {}
        for layer in self.layers(operator):
            for provider in layer.providers:
                if provider in forbidden and layer.source != LOCK:
                    msg = (
                        f"{provider!r} for {operator} is asked for by {layer.source} "
                        f"and forbidden by {forbidden[provider]}"
                    )
                    raise ConfigError(msg, fix="take one of the two out")
                if provider in providers and provider not in ranked:
                    ranked.append(provider)
                    said[provider] = layer.source
        ranked += [p for p in providers if p not in ranked]
        return ranked, said

    def refuses_reference(self, operator: str, said: Mapping[str, str]) -> bool:
        """Whether strict mode refuses the reference; the code that binds may ask for it.

        Raises:
            ConfigError: the environment or the file asks for it.
        """
        source = said.get(REFERENCE, "")
        if source in {"argument", "prefer()"}:
            return False
        if source and source != LOCK:
            named = self.settings.source("strict") if self.settings.strict else "strict=True"
            msg = f"the reference for {operator} is asked for by {source} and refused by {named}"
            raise ConfigError(msg, fix="take one of the two out")
        return True

    def overruled(self, operator: str, providers: Sequence[str]) -> str:
        """The order list of environment or file that the lock overrides; empty without.

        Args:
            operator: name of the operator.
            providers: what may run, in the order that was chosen.
        """
        setting = self.settings.order(operator, self.mode)
        if setting is None or operator not in self.lock or not providers:
            return ""
        wanted = next((p for p in setting.providers if p in providers), providers[0])
        by_lock = providers[0] in self.lock[operator]
        return setting.source if by_lock and wanted != providers[0] else ""

    def check_names(self, known: Mapping[str, Sequence[str]]) -> None:
        """Refuses order lists that name an operator or provider that does not exist.

        Raises:
            UnknownName: with near misses.
        """
        every = sorted({p for providers in known.values() for p in providers} | {REFERENCE})
        lists = [self.argument, *self.context, *self.settings.orders.values()]
        for given in lists:
            for operator, providers in given.items():
                if operator.startswith(COLLECTIVES):
                    continue
                if operator != "*" and operator not in known:
                    base = operator.removesuffix("_out").removesuffix("_")
                    form = f", only a form of {base!r} (lists are for all forms)"
                    raise _unknown(
                        f"operator{form * (base in known)}", operator, known, "trivet ops"
                    )
                allowed = every if operator == "*" else [*known[operator], REFERENCE]
                for provider in providers:
                    if provider not in allowed:
                        shows = "trivet ops" if operator == "*" else f"trivet ops {operator}"
                        raise _unknown(f"provider for {operator!r}", provider, allowed, shows)


def _unknown(kind: str, name: str, known: Iterable[str], shows: str) -> UnknownName:
    problem = f"an order list names no {kind}: {name!r}"
    return UnknownName(problem, fix=f"known: {likely(name, known)} (all: {shows})")


def current_context() -> tuple[tuple[Mapping[str, tuple[str, ...]], ...], frozenset[str]]:
    """What ``prefer`` and ``require`` say at this moment."""
    return _preferred.get(), _required.get()
