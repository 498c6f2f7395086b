"""Capture: a step recorded once for some sizes, and run again without the host.

``open`` makes what an engine finds under ``dev.capture``.
"""

from __future__ import annotations

from trivet.capture.buckets import BucketReport, Buckets, Input
from trivet.capture.device import DeviceCapture
from trivet.capture.session import boundary, capturing
from trivet.contracts.device_info import DeviceInfo
from trivet.memory import DeviceMemory

__all__ = ["BucketReport", "Buckets", "DeviceCapture", "Input", "boundary", "capturing", "open"]


def open(  # noqa: A001  # capture.open
    info: DeviceInfo, memory: DeviceMemory, provided: object = None
) -> DeviceCapture:
    """The capture of a device.

    Args:
        info: the device.
        memory: accounts for graphs.
        provided: what the plugin's ``trivet_capture`` returned, or None.
    """
    return DeviceCapture(info, memory, provided)
