"""Collectives: groups of ranks, the same on every device.

``open`` makes what an engine finds under ``dev.collectives``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trivet import settings
from trivet.collectives.device import DeviceCollectives
from trivet.collectives.group import DeviceGroup
from trivet.collectives.symmetric import SymmetricTensor
from trivet.collectives.work import Started

__all__ = ["DeviceCollectives", "DeviceGroup", "Started", "SymmetricTensor", "open"]


def open(  # noqa: A001  # collectives.open
    device: torch.device,
    provided: Mapping[str, object] | None = None,
    versions: Mapping[str, str] | None = None,
    *,
    check: bool | None = None,
) -> DeviceCollectives:
    """The collectives of a device.

    Args:
        device: where the tensors of its groups lie.
        provided: what ``trivet_collectives`` of each plugin returned, by plugin.
        versions: of the plugins' packages, on which ranks must agree.
        check: compare every call across ranks before it is made; None reads the settings
            (``TRIVET_COMM_CHECK``, ``TRIVET_CHECK``).
    """
    if check is None:
        read = settings.read()
        check = read.comm_check or read.check
    return DeviceCollectives(device, provided or {}, versions or {}, check=check)
