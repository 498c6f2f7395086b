"""How a device is named on the command line."""

from __future__ import annotations

from trivet.devices import Device


def where(device: Device) -> str:
    """A device as it is asked for."""
    return f"{device.info.kind}:{device.info.index}"
