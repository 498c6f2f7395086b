"""Collectives: groups of ranks, the same on every device.

``open`` makes what an engine finds under ``dev.collectives``.
"""

from __future__ import annotations

import torch

from trivet import settings
from trivet.collectives.device import DeviceCollectives
from trivet.collectives.group import DeviceGroup

__all__ = ["DeviceCollectives", "DeviceGroup", "open"]


def open(  # noqa: A001  # collectives.open
    device: torch.device, provided: object = None, *, check: bool | None = None
) -> DeviceCollectives:
    """The collectives of a device.

    Args:
        device: where the tensors of its groups lie.
        provided: what the plugin's ``trivet_collectives`` returned, or None.
        check: compare every call across ranks before it is made; None reads the settings
            (``TRIVET_CHECK``).
    """
    return DeviceCollectives(
        device, provided, check=settings.read().check if check is None else check
    )
