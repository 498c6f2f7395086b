"""The architectures that kernels are compiled for, and which of them a device is."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from triton.backends.compiler import GPUTarget

TARGETS: Final = {
    f"sm{number}": GPUTarget("cuda", number, 32) for number in (80, 86, 89, 90, 100, 120)
}
"""Names as in tables and gates -> what Triton compiles for."""

INTERPRETED: Final = "sm90"
"""The architecture whose constants hold where kernels are interpreted."""


@cache
def arch_of(device: torch.device) -> str:
    """The architecture of a device, by its compute capability; ``sm90`` of the CPU.

    It need not be one of ``TARGETS``: a device of another one has no table of its own.
    """
    if device.type == "cpu":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"
