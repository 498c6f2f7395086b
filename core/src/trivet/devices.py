"""The device: the one object through which an engine reaches all three legs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from trivet.binding.binder import Binder, Prefer
from trivet.binding.ops import Ops
from trivet.catalogue import operators
from trivet.contracts.declaration import Operator
from trivet.contracts.device_info import DeviceInfo
from trivet.plugins import Report, discover
from trivet.plugins.offer import Offer, collect
from trivet.plugins.resolve import AUTO, Resolved, resolve
from trivet.selection.authority import current_context, known_properties
from trivet.selection.choose import Trace, elsewhere
from trivet.settings import Settings, read

if TYPE_CHECKING:
    from trivet.binding.observe import Counts
    from trivet.binding.plan import Plan, Sites
    from trivet.capture import DeviceCapture
    from trivet.collectives import DeviceCollectives
    from trivet.memory import DeviceMemory
    from trivet.topology import Verdict

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Device:
    """A device with its operators, memory and collectives; made by ``trivet.device``."""

    def __init__(self, resolved: Resolved, offer: Offer, binder: Binder) -> None:
        self._resolved = resolved
        self._offer = offer
        self._binder = binder
        self._ops: dict[object, Ops] = {}

    def __repr__(self) -> str:
        return f"<trivet device {self.info.kind}:{self.info.index} of plugin {self.plugin!r}>"

    @property
    def info(self) -> DeviceInfo:
        """What the device says of itself; unknown is None."""
        return self._resolved.info

    @property
    def plugin(self) -> str:
        """Name of the plugin that brings it; ``"reference"`` when core runs the references."""
        return self._resolved.plugin

    @property
    def reason(self) -> str:
        """Why this device was taken."""
        return self._resolved.reason

    @property
    def torch(self) -> torch.device:
        """The ``torch.device`` of its tensors."""
        return self.info.torch

    @property
    def report(self) -> Report:
        """What became of every installed plugin, with reasons."""
        return discover().report()

    @property
    def operators(self) -> Mapping[str, Operator]:
        """Declarations of every operator that can be bound here."""
        return self._binder.operators

    @property
    def binder(self) -> Binder:
        """What makes choices and binds, for tools that show more than an engine needs."""
        return self._binder

    @property
    def offer(self) -> Offer:
        """Everything that plugins brought for it, refusals included."""
        return self._offer

    @property
    def defaults(self) -> Mapping[str, tuple[object, str, str]]:
        """Engine defaults that it proposes: name -> (value, reason, plugin)."""
        return self._offer.defaults

    @cached_property
    def memory(self) -> DeviceMemory:
        """The memory leg: accounted allocation, block pools, statistics; loaded when used."""
        from trivet import memory

        name = f"{self.info.kind}:{self.info.index}"
        return memory.open(self.torch, self._offer.memory.get(self.plugin), name=name)

    @cached_property
    def collectives(self) -> DeviceCollectives:
        """The collective leg: groups over this kind of device; loaded when used."""
        from trivet import collectives

        lines = {plugin: discover().line(plugin) for plugin in self._offer.collectives}
        versions = {plugin: f"{line.dist} {line.version}" for plugin, line in lines.items()}
        return collectives.open(self.torch, self._offer.collectives, versions)

    @cached_property
    def topology(self) -> Verdict:
        """How the devices of this machine are connected; found when it is asked for."""
        from trivet.topology import machine

        return machine()

    @cached_property
    def capture(self) -> DeviceCapture:
        """Steps recorded once and run again without the host; loaded when used."""
        from trivet import capture

        return capture.open(self.info, self.memory, self._offer.capture.get(self.plugin))

    @property
    def ops(self) -> Ops:
        """Operators bound without facts, under the ``prefer`` and ``require`` of this moment."""
        context = current_context()
        key = (tuple(tuple(c.items()) for c in context[0]), context[1])
        if key not in self._ops:
            self._ops[key] = Ops(self.bind, iter(self._binder.operators))
        return self._ops[key]

    @cached_property
    def _counts(self) -> Counts:
        from trivet.binding.observe import Counts

        return Counts()

    def bind(
        self,
        operator: str,
        facts: Mapping[str, Any] = NOTHING,
        /,
        *,
        observe: bool = False,
        prefer: Prefer = NOTHING,
    ) -> Callable[..., Any]:
        """The callable of one call site.

        Args:
            operator: operator name, with the form: ``"rms_norm"``, ``"rms_norm_"``.
            facts: what the site promises, on the paths of domains; breaking one is undefined,
                except under ``TRIVET_CHECK=1``.
            observe: whether calls are counted (``device.counts()``).
            prefer: order lists of this bind alone.

        Returns:
            The vendor's own function where the facts prove a domain, else a generated guard.

        Raises:
            UnknownName: an operator, fact or provider does not exist.
            NoImplementation: nothing may run; the trace says why for each.
        """
        policy = self._binder.policy(prefer=prefer)
        counts = self._counts if observe or policy.settings.trace else None
        return self._binder.bind(operator, facts, policy, counts=counts)

    def explain(
        self,
        operator: str,
        facts: Mapping[str, Any] = NOTHING,
        /,
        *,
        arguments: Mapping[str, Any] | None = None,
        prefer: Prefer = NOTHING,
        mode: str = "eager",
        site: bool = False,
    ) -> Trace:
        """Every candidate in order: yes, guarded on what, no and why, or shadowed by which.

        With ``arguments`` (by name, real or fake tensors) it says which one runs for that call;
        with ``site``, scalars that facts do not name are promised at their defaults, as in a plan.
        """
        policy = self._binder.policy(prefer=prefer, mode=mode)
        choice = self._binder.choose(operator, facts, policy, site=site)
        if arguments is None:
            return Trace(choice.rows)
        from trivet.selection.on_call import on_call, refuse_no_call

        refuse_no_call(choice, arguments)
        return Trace(on_call(choice, arguments))

    def plan(
        self,
        sites: Sites,
        *,
        mode: str = "eager",
        observe: bool = False,
        prefer: Prefer = NOTHING,
        lock: str | Path | Mapping[str, Any] | Literal[False] | None = None,
        packs: int = 0,
    ) -> Plan:
        """Binds every call site of an engine at once.

        Args:
            sites: name -> (operator with form, facts). A site promises that scalars it does not
                name stay at their defaults. A dim whose fact is text is that step variable.
            mode: ``eager``, ``compiled``, ``captured`` or ``exported``.
            observe: whether the plan counts calls.
            prefer: order lists of this plan alone.
            lock: lock file or document that the choices must agree with; default
                ``TRIVET_LOCK``; False for none.
            packs: 1 forces one provider, and so one pack, on every step of a prepared site.

        Returns:
            The plan of this process that equals what was asked for, if there is one.

        Raises:
            UnknownName: an operator, fact, provider, mode or site name is wrong.
            NoImplementation: nothing may run a site.
            OrderError: a prepared site stays guarded.
            LockMismatch: the lock and this process differ; every field is listed.
        """
        from trivet.binding.plan import Plan
        from trivet.selection import lock as locks

        settings = read()
        locked = locks.given(lock, settings)
        plan = Plan(
            self._binder, sites, settings, locked=locked, prefer=prefer, mode=mode,
            observe=observe, packs=packs,
        )  # fmt: skip
        if locked is not None:
            locks.verify(locked, plan.lock)
        return plan.interned()

    def counts(self) -> dict[tuple[str, str], int]:
        """Calls of observed binds, by (operator, provider)."""
        return self._counts.table()

    def providers(self) -> dict[str, list[str]]:
        """Provider ids of each operator in default order, without the reference."""
        return self._binder.providers()


def device(name: str = AUTO, *, strict: bool = False, require: Iterable[str] = ()) -> Device:
    """Starts a device.

    Args:
        name: ``"auto"``, a device kind, or kind and index (``"cpu"``, ``"acme:1"``).
        strict: refuse the reference where a provider for the operator exists.
        require: properties that every implementation must declare
            (``{"batch_invariant"}``).

    Raises:
        PluginNotFound: no installed package brings that device.
        PluginBroken: its package cannot be used; the text is its line of the report.
        PluginIncompatible: its package was built for another contract.
        AmbiguousDevice: ``auto`` finds two devices that are equally entitled.
    """
    settings = read()
    _log_to_stderr(settings)
    required = known_properties(require)
    discovery = discover(settings)
    resolved = resolve(str(name), discovery, replace(settings, strict=strict or settings.strict))
    offer = collect(discovery, resolved, operators())
    binder = Binder(
        info=resolved.info, operators=offer.operators, implementations=offer.implementations,
        plugins={name: discovery.candidate(name).home for name in discovery.names},
        unmet=elsewhere(offer), strict=strict, required=required,
    )  # fmt: skip
    return Device(resolved, offer, binder)


def _log_to_stderr(settings: Settings) -> None:
    """Shows log lines only where ``TRIVET_LOG`` asks for them."""
    logger = logging.getLogger("trivet")
    if settings.source("log") != "default" and not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(settings.log.upper())
