"""Binding: from an operator and facts to a callable, under the selection of this moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trivet.binding.build import build, resolved
from trivet.contracts.declaration import Operator
from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.names import missing_form, split_target
from trivet.contracts.terms import Term
from trivet.errors import UnknownName
from trivet.plugins.verification import Implementation
from trivet.selection.authority import Policy, current_context, orders
from trivet.selection.choose import Arm, Choice, Row, choose, nearest_rows
from trivet.selection.facts import normalise
from trivet.settings import MODES, Settings, likely, read

if TYPE_CHECKING:
    from trivet.binding.observe import Counts

LOG = logging.getLogger("trivet.bind")

Prefer = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, eq=False)
class Binder:
    """What may run on one device, and the caller's standing wishes.

    Args:
        info: the device.
        operators: every known operator by name, core's and the plugins'.
        implementations: verified implementations in default order.
        unmet: operator name and row of each implementation that cannot run here, or was refused.
        plugins: installed plugins -> distribution and version, as discovery saw them.
        strict: refuse the reference where a provider exists, whatever the settings say.
        required: properties that every implementation must declare.
    """

    info: DeviceInfo
    operators: Mapping[str, Operator]
    implementations: tuple[Implementation, ...]
    unmet: tuple[tuple[str, Row], ...] = ()
    plugins: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    required: frozenset[str] = frozenset()

    def policy(
        self,
        *,
        prefer: Prefer = MappingProxyType({}),
        lock: Prefer = MappingProxyType({}),
        mode: str = "eager",
        settings: Settings | None = None,
    ) -> Policy:
        """The policy of this moment; reads environment, file and context.

        Raises:
            ConfigError: settings are not understood.
            UnknownName: an order list names what does not exist, or there is no such mode.
        """
        if mode not in MODES:
            msg = f"no mode {mode!r}"
            raise UnknownName(msg, fix=f"use one of {', '.join(MODES)}")
        settings = settings or read()
        context, required = current_context()
        policy = Policy(
            settings=settings,
            argument=orders(prefer),
            context=context,
            lock=orders(lock),
            required=self.required | required,
            strict=self.strict or settings.strict,
            mode=mode,
        )
        policy.check_names(self.providers())
        return policy

    def providers(self) -> dict[str, list[str]]:
        """Provider ids of each operator, in default order, unmet ones last."""
        found: dict[str, list[str]] = {name: [] for name in self.operators}
        rows = [(i.operator.name, i.provider) for i in self.implementations]
        for name, provider in rows + [(op, row.provider) for op, row in self.unmet]:
            if provider not in found[name]:
                found[name].append(provider)
        return found

    def target(self, name: str) -> tuple[Operator, str]:
        """The operator and form that a name means.

        Raises:
            UnknownName: no such operator or form; near misses are listed.
        """
        base, form, version = split_target(str(name), self.operators)
        op = self.operators.get(base)
        if op is None:
            msg = f"no operator {name!r}"
            raise UnknownName(
                msg, fix=f"use one of {likely(base, self.operators)} (all: trivet ops)"
            )
        if version is not None and version != op.version:
            asked = name.partition("@")[2]
            msg = f"operator {op.name!r} is at version {op.version}, not {asked}"
            raise UnknownName(msg, fix=f"port the call to {op.name}@{op.version}")
        if problem := missing_form(op, form):
            raise UnknownName(problem, fix=f"use {op.name!r}")
        return op, form

    def choose(
        self,
        name: str,
        facts: Mapping[str, Any],
        policy: Policy,
        *,
        site: bool = False,
        varying: Collection[str] = (),
    ) -> Choice:
        """The choice for a call site, with its trace; for the rest see ``normalise``.

        Raises:
            UnknownName: the operator or a fact does not exist.
            NoImplementation: nothing may run; the trace says why for each.
        """
        op, form = self.target(name)
        own = [i for i in self.implementations if i.operator is op]
        known = normalise(op, facts, site=site, varying=varying)
        can = {i.provider for i in own}
        rows = (row for of, row in self.unmet if of == op.name and row.provider not in can)
        unmet = nearest_rows(rows, form)
        choice = choose(op, form, known, own, policy, elsewhere=unmet)
        if site or op.prepare is None or choice.settled:
            return choice
        # A call has one pack: a guard would hand one provider the pack of another.
        packers = [i for i in own if i.claim.prepare is not None]
        why = "it reads a pack of its own, which only a plan can choose: plan.prepare(site, weight)"
        unmet += [Row(i.provider, "no", why, elsewhere=True) for i in packers]
        plain = [i for i in own if i.claim.prepare is None]
        return choose(op, form, known, plain, policy, elsewhere=unmet)

    def bind(
        self,
        name: str,
        facts: Mapping[str, Any],
        policy: Policy,
        *,
        counts: Counts | None = None,
    ) -> Callable[..., Any]:
        """The callable of a call site that promises these facts."""
        choice = self.choose(name, facts, policy)
        made = finish(choice, name, policy.settings, counts, grad=not facts)
        announce(name, choice)
        return made


def announce(name: str, choice: Choice) -> None:
    """Says in the log who runs a site, and as a warning who was asked for and cannot."""
    for row in choice.rows:
        if row.preferred and row.elsewhere:
            LOG.warning("%s does not run as asked: %s", name, row)
    for arm in choice.arms:
        LOG.info("%s -> %s", name, arm.provider)


def finish(
    choice: Choice,
    site: str,
    settings: Settings,
    counts: Counts | None,
    *,
    grad: bool = False,
    decided: Mapping[Term, bool] = MappingProxyType({}),
    mode: str = "eager",
) -> Callable[..., Any]:
    """Builds a choice, with nodes, checks and counters around each arm where they are due."""
    compiled = mode == "compiled"
    if not settings.check and counts is None and not compiled:
        return build(choice, grad=grad)
    identity = (site, compiled, *sorted((str(t), on) for t, on in decided.items()))

    def wrap(arm: Arm) -> Callable[..., Any]:
        function = resolved(arm, choice)
        if compiled:
            from trivet.binding.nodes import node  # only where a compiler comes

            function = node(arm, choice.form, function)
        if settings.check:
            from trivet.binding.checks import checked  # only where somebody asks for it

            function = checked(arm, choice.form, choice.facts, decided, site)
        return counts.wrap(site, arm, function) if counts is not None else function

    return build(choice, grad=grad, wrap=wrap, wrapped=identity if counts is None else None)
