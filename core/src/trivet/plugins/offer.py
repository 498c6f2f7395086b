"""Collects what the plugins of a device offer for it; each refusal costs only what is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from trivet.contracts.declaration import Operator
from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.implementation import Claim, claims_of
from trivet.contracts.names import split_target
from trivet.errors import DeclarationError, TrivetError
from trivet.plugins.answers import (
    defaults_problem,
    implementations_problem,
    operators_problem,
    usable_defaults,
)
from trivet.plugins.describe import said, shown
from trivet.plugins.discovery import Discovery
from trivet.plugins.report import Status
from trivet.plugins.resolve import Resolved
from trivet.plugins.verification import Implementation, verify, where_defined

LOG: Final = logging.getLogger("trivet.plugins")
LEGS: Final = ("memory", "collectives", "capture")
"""Hooks that return one object, in the order of the last fields of ``Offer``."""


@dataclass(frozen=True)
class Refusal:
    """One claim that was refused: whose it is, what it claims, and why not.

    Args:
        plugin: name of the plugin.
        dist: its distribution.
        target: the target as its author wrote it; of a function without a mark, its ``repr``.
        error: why not.
        provider: ``plugin/name``; the plugin alone when the claim gives no name.
        operator: name of the operator that the target means; empty when there is none.
        form: the form that the target means; empty when there is no operator.
        place: file and line of the function in parentheses, or nothing.
    """

    plugin: str
    dist: str
    target: str
    error: TrivetError
    provider: str
    operator: str
    form: str = ""
    place: str = ""

    @property
    def reason(self) -> str:
        """Why not, then where; without the names of provider and target."""
        who = f"{self.provider} for {self.target!r}{self.place}: "
        what = self.error.what.removeprefix(who)
        return what if what == self.error.what else f"{what}{self.place}"

    def __str__(self) -> str:
        return f"refused {self.error.what}"


@dataclass(frozen=True)
class Unmet:
    """A verified implementation that this device cannot run, and why."""

    implementation: Implementation
    reason: str

    def __str__(self) -> str:
        return f"not for this device: {self.implementation!r}: {self.reason}"


@dataclass(frozen=True)
class Offer:
    """Everything that plugins bring for one device.

    Args:
        operators: core's operators and those of the plugins, by name.
        implementations: in default order: the device's own plugin, then those that add to it.
        unmet: implementations whose requirements this device does not meet.
        refusals: claims that are wrong.
        defaults: engine defaults -> (value, reason, plugin); the device's own plugin wins.
        memory: what each plugin returned from ``trivet_memory``, by plugin.
        collectives: what each plugin returned from ``trivet_collectives``, by plugin.
        capture: what each plugin returned from ``trivet_capture``, by plugin.
    """

    operators: Mapping[str, Operator]
    implementations: tuple[Implementation, ...]
    unmet: tuple[Unmet, ...]
    refusals: tuple[Refusal, ...]
    defaults: Mapping[str, tuple[object, str, str]]
    memory: Mapping[str, object]
    collectives: Mapping[str, object]
    capture: Mapping[str, object] = field(default_factory=dict)


def collect(discovery: Discovery, resolved: Resolved, known: Mapping[str, Operator]) -> Offer:
    """Asks the plugins of a device for everything they bring for it.

    Args:
        discovery: of this process.
        resolved: the device.
        known: core's operators by name.

    Raises:
        PluginError: the device's own plugin fails while it is asked; one that only adds to the
            device is left out instead, and its line in the report says why.
    """
    info = resolved.info
    operators = dict(known)
    found: list[Implementation] = []
    unmet: list[Unmet] = []
    refusals: list[Refusal] = []
    defaults: dict[str, tuple[object, str, str]] = {}
    others: dict[str, dict[str, object]] = {f"trivet_{leg}": {} for leg in LEGS}
    for plugin in resolved.providers:
        brought = _Brought(plugin, discovery.line(plugin).dist)
        ask = partial(discovery.ask, plugin)
        own = ask("trivet_operators", check=partial(operators_problem, plugin))
        operators |= {op.name: op for op in own or ()}
        check = implementations_problem
        for function in ask("trivet_implementations", check=check, device=info) or ():
            brought.judge(function, operators, info)
        rows = ask("trivet_defaults", check=defaults_problem, device=info)
        proposed, brought.remarks = usable_defaults(rows or {})
        for name, (value, reason) in proposed.items():
            defaults.setdefault(name, (value, reason, plugin))
        for hook, answers in others.items():
            if (answer := ask(hook, device=info)) is not None:
                answers[plugin] = answer
        if not discovery.line(plugin).usable:
            if plugin == resolved.plugin:
                raise discovery.failure(plugin)
            continue
        found += brought.implementations
        unmet += brought.unmet
        refusals += brought.refusals
        brought.legs = [n for n, a in zip(LEGS, others.values(), strict=True) if plugin in a]
        anything = bool(own or rows or brought.legs)
        _remark(discovery, resolved, brought, anything=anything)
    legs = map(MappingProxyType, others.values())
    return Offer(
        MappingProxyType(operators), tuple(found), tuple(unmet), tuple(refusals),
        MappingProxyType(defaults), *legs,
    )  # fmt: skip


class _Brought:
    """The claims of one plugin, judged one by one."""

    def __init__(self, plugin: str, dist: str) -> None:
        self.plugin = plugin
        self.dist = dist
        self.implementations: list[Implementation] = []
        self.unmet: list[Unmet] = []
        self.refusals: list[Refusal] = []
        self.remarks: list[str] = []
        self.legs: list[str] = []
        self._seen: set[tuple[str, str, str]] = set()

    def judge(self, function: object, known: Mapping[str, Operator], info: DeviceInfo) -> None:
        """Verifies every claim on one member of what ``trivet_implementations`` returned."""
        text = shown(function)
        claims: tuple[Claim, ...] = ()
        try:
            claims = claims_of(function)
            place = where_defined(function)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a foreign object that is no function
            place = ""
        if not claims:
            error = DeclarationError(
                f"{self.plugin}: {text}{place} is not marked", fix="decorate it with @implements"
            )
            self._refuse(Refusal(self.plugin, self.dist, text, error, self.plugin, ""))
        for claim in claims:
            if (wrong := self._verdict(claim, known, info)) is not None:
                provider = f"{self.plugin}/{claim.name}"
                base, form, _ = split_target(claim.target, known)
                operator = base if base in known else ""
                self._refuse(
                    Refusal(self.plugin, self.dist, claim.target, wrong, provider, operator,
                            form, where_defined(claim.function))
                )  # fmt: skip

    def _verdict(
        self, claim: Claim, known: Mapping[str, Operator], info: DeviceInfo
    ) -> TrivetError | None:
        """Why a claim is refused; None when it was taken."""
        try:
            self._admit(verify(claim, self.plugin, known), info)
        except KeyboardInterrupt:
            raise
        except TrivetError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - a claim holds what its author wrote
            who = f"{self.plugin}/{claim.name} for {claim.target!r}"
            return DeclarationError(
                f"{who}{where_defined(claim.function)}: cannot be read: {said(error)}",
                fix="see what implements() takes",
            )
        return None

    def _admit(self, implementation: Implementation, info: DeviceInfo) -> None:
        key = implementation.provider, implementation.operator.name, implementation.form
        if key in self._seen:
            raise DeclarationError(
                f"{key[0]} for {implementation.claim.target!r}"
                f"{where_defined(implementation.function)}: is claimed twice",
                fix="give one of them another name",
            )
        self._seen.add(key)
        reasons = [why for need in implementation.claim.requires if (why := need.unmet(info))]
        if reasons:
            self.unmet.append(Unmet(implementation, "; ".join(reasons)))
        else:
            self.implementations.append(implementation)

    def _refuse(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)
        LOG.warning("%s (%s): %s", refusal.plugin, refusal.dist, _with_fix(refusal))


def _with_fix(refusal: Refusal) -> str:
    return f"{refusal}; fix: {refusal.error.fix}" if refusal.error.fix else str(refusal)


def _remark(discovery: Discovery, resolved: Resolved, brought: _Brought, *, anything: bool) -> None:
    """Writes what a plugin brought into its line of the report."""
    kept = len(brought.implementations)
    counts = {
        "implementation" if kept == 1 else "implementations": kept,
        "not for this device": len(brought.unmet),
        "refused": len(brought.refusals),
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    said = ", ".join(told + brought.legs)
    details = (*map(_with_fix, brought.refusals), *map(str, (*brought.unmet, *brought.remarks)))
    for remark in brought.remarks:
        LOG.warning("%s (%s): %s", brought.plugin, brought.dist, remark)
    discovery.remark(brought.plugin, said or "no implementations", details)
    if not (brought.plugin == resolved.plugin or anything or kept or brought.unmet):
        why = "all that it claims was refused" if brought.refusals else "it brings nothing"
        fix = f"tell who makes {brought.dist}"
        discovery.refuse(brought.plugin, Status.REGISTERED_NOTHING, why, fix)
