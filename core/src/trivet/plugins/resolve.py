"""Decides which device ``trivet.device(...)`` means, and says why.

A device asked for by name is that one or an error; ``auto`` never passes over a choice that it
cannot make. Only plugins that the question concerns are imported.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final

from trivet.contracts.device_info import DeviceInfo, Execution
from trivet.errors import AmbiguousDevice, PluginBroken, PluginNotFound
from trivet.plugins.discovery import Discovery
from trivet.plugins.metadata import RESERVED
from trivet.plugins.report import Status
from trivet.settings import Settings

AUTO, REFERENCE = RESERVED
EMBEDDED: Final = "cpu"
"""The device kind that ``auto`` takes when no accelerator says yes."""

_INDEX: Final = re.compile(r"[0-9]{1,9}")

LOG: Final = logging.getLogger("trivet.plugins")


@dataclass(frozen=True)
class Resolved:
    """A device, the plugin that brings it, and why it was taken.

    Args:
        info: the device.
        plugin: name of its plugin; ``"reference"`` when core runs the references itself.
        reason: one sentence.
        extenders: plugins that add to it, loaded and willing, in order of name.
    """

    info: DeviceInfo
    plugin: str
    reason: str
    extenders: tuple[str, ...] = ()

    @property
    def providers(self) -> tuple[str, ...]:
        """The plugins that may offer something for this device, its own first."""
        own = () if self.plugin == REFERENCE else (self.plugin,)
        return own + self.extenders


def resolve(spec: str, discovery: Discovery, settings: Settings | None = None) -> Resolved:
    """The device that a specification means: ``"auto"``, ``"NAME"`` or ``"NAME:INDEX"``.

    Args:
        spec: the specification.
        discovery: of this process.
        settings: of this moment, for ``device`` and ``strict``; by default the discovery's.

    Raises:
        PluginNotFound: no plugin of that name, or no device of that index.
        PluginIncompatible: the plugin was built for another contract.
        PluginBroken: the plugin asked for cannot be used; its line of the report is the text.
        AmbiguousDevice: ``auto`` finds two devices that are equally entitled.
    """
    if spec != AUTO:
        return _named(spec, discovery, "asked for by name")
    settings = settings or discovery.settings
    if settings.device and settings.device != AUTO:
        reason = f"{settings.source('device')} names {settings.device}"
        return _named(settings.device, discovery, reason)
    return _automatic(discovery, strict=settings.strict)


def reference(reason: str) -> Resolved:
    """The device of last resort: torch's CPU, on which core runs the references."""
    info = DeviceInfo(REFERENCE, name="the references of trivet", notes=(reason,))
    return Resolved(info, REFERENCE, reason)


def _named(spec: str, discovery: Discovery, reason: str) -> Resolved:
    name, colon, number = spec.partition(":")
    if colon and not _INDEX.fullmatch(number):
        raise PluginNotFound(f"device {spec!r}: {number!r} is no index", fix=f"{name}:0")
    if name == REFERENCE:
        if colon and int(number):
            raise PluginNotFound(f"no device {spec!r}", fix=f"there is {REFERENCE}:0")
        return reference(reason)
    if kind := discovery.candidate(name).extends:
        raise PluginNotFound(
            f"plugin {name!r} brings no device, it adds to {kind!r}", fix=f"ask for {kind!r}"
        )
    devices = discovery.devices(name)
    line = discovery.line(name)
    if line.status is not Status.FOUND:
        raise discovery.failure(name)
    if not devices:
        raise PluginBroken(f"plugin {name!r} of {line.dist} {line.version} has no device",
                           fix=f"it needs the hook trivet_devices, or an entry point of group "
                           f"trivet.extends; tell who makes {line.dist}")  # fmt: skip
    by_index = {info.index: info for info in devices}
    index = int(number) if colon else devices[0].index
    if index not in by_index:
        there = ", ".join(f"{name}:{i}" for i in by_index)
        raise PluginNotFound(f"no device {spec!r}", fix=f"there is {there}")
    return Resolved(by_index[index], name, reason, _willing(name, discovery))


def _willing(kind: str, discovery: Discovery) -> tuple[str, ...]:
    """The plugins that add to a kind and neither fail nor decline."""
    willing = []
    for name in discovery.usable(extends=kind):
        discovery.devices(name)
        if discovery.line(name).usable:
            willing.append(name)
    return tuple(willing)


def _automatic(discovery: Discovery, *, strict: bool) -> Resolved:
    found = {n: discovery.devices(n) for n in discovery.usable() if n != EMBEDDED}
    present = [n for n, of in found.items() if Execution.HARDWARE in {d.execution for d in of}]
    entitled = [n for n in present if not discovery.candidate(n).own] or present
    if len(entitled) > 1:
        homes = [f"{n} ({discovery.line(n).dist})" for n in entitled]
        raise AmbiguousDevice(
            f"auto finds the hardware of {' and '.join(homes)}",
            fix=f"name one: trivet.device({entitled[0]!r}), or TRIVET_DEVICE={entitled[0]}",
        )
    if entitled:
        why = "the only other device than the embedded one whose probe says yes"
        if len(present) > 1:
            others = ", ".join(n for n in present if n not in entitled)
            why = f"brought by another distribution than this project's own {others}"
        return _named(entitled[0], discovery, why)
    why = _passed_over(discovery, strict=strict)
    if EMBEDDED in discovery.names:
        discovery.devices(EMBEDDED)
        if discovery.line(EMBEDDED).usable:
            return _named(EMBEDDED, discovery, f"no accelerator is usable{why}")
        why = _passed_over(discovery, strict=strict)
    last = reference(f"no device plugin is usable{why or ': none is installed'}")
    LOG.warning("%s", last.reason)
    return last


def _passed_over(discovery: Discovery, *, strict: bool) -> str:
    """The devices that were not taken, with reasons, as the end of a sentence.

    Raises:
        PluginBroken: one of them is at fault and strict mode is on; it must not be passed over.
    """
    lines = [ln for ln in discovery.report() if not ln.extends and ln.status is not Status.FOUND]
    for line in lines:
        if line.faulty and strict:
            raise discovery.failure(line.plugin)
    parts = [f"{ln.plugin} is {ln.status.value} ({ln.reason})" for ln in lines]
    stand_ins = [info for name in discovery.usable() for info in discovery.devices(name)]
    parts += [f"{d.kind} is {d.execution}" for d in stand_ins if d.execution != Execution.HARDWARE]
    return f": {'; '.join(parts)}" if parts else ""
