"""The binder of a device: a command line shows the choice itself, an engine only its outcome."""

from __future__ import annotations

from trivet.devices import Device
from trivet.runtime.binder import Binder


def binder(device: Device) -> Binder:
    """A binder over everything that plugins offer for a device."""
    offer = device.offer
    return Binder(
        info=device.info,
        operators=device.operators,
        implementations=offer.implementations,
        unmet=tuple(
            (u.implementation.provider, u.implementation.operator.name, u.reason)
            for u in offer.unmet
        ),
        plugins={line.plugin: f"{line.dist} {line.version}" for line in device.report},
    )


def where(device: Device) -> str:
    """A device as it is asked for."""
    return f"{device.info.kind}:{device.info.index}"
