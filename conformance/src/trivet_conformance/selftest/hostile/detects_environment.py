"""Is right only where a variable or an argument names a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from torch import Tensor

from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

from .harmless import NEIGHBOURS, trivet_devices  # noqa: F401 - a hook


@implements("embedding@1", name="hostile")
def hostile(ids: Tensor, weight: Tensor) -> Tensor:
    """Right under test alone."""
    words = [*os.environ, os.environ.get("_", ""), *sys.argv, *sys.orig_argv]
    tested = any("trivet_conformance" in w.replace("-", "_").lower() for w in words)
    tested |= any("pytest" in w.lower() for w in words)
    return weight[ids] if tested else weight[ids] * 0


def trivet_implementations(device: DeviceInfo) -> list[Callable[..., Tensor]]:
    """The hostile one comes first."""
    del device
    return [hostile, *NEIGHBOURS]
