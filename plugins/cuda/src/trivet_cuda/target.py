"""The architectures that kernels are compiled for, which of them a device is, and what it has."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import torch
from triton.backends.compiler import GPUTarget

from trivet_cuda.discovery import architecture

TABLES: Final = Path(__file__).with_name("tables")
"""Measured configs, one file an architecture."""

TARGETS: Final = {
    f"sm{number}": GPUTarget("cuda", number, 32) for number in (80, 86, 89, 90, 100, 120)
}
"""Names as in tables and gates -> what Triton compiles for."""

INTERPRETED: Final = "sm90"
"""The architecture whose constants hold where kernels are interpreted."""

_LEAST: Final = 99


@cache
def arch_of(device: torch.device) -> str:
    """The architecture of a device, by its compute capability; ``sm90`` of the CPU.

    It need not be one of ``TARGETS``: a device of another one has no table of its own.
    """
    if device.type == "cpu":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


@cache
def device_at(index: int) -> torch.device:
    """The device with the index of ``Tensor.get_device``; -1 is the CPU, which interprets."""
    return torch.device("cpu") if index < 0 else torch.device("cuda", index)


@cache
def arch_at(index: int) -> str:
    """The architecture of the device with the index of ``Tensor.get_device``."""
    return arch_of(device_at(index))


@cache
def processors(index: int) -> int:
    """How many multiprocessors a device has; two where programs are interpreted."""
    return 2 if index < 0 else torch.cuda.get_device_properties(index).multi_processor_count


@cache
def shared_kib(arch: str) -> int:
    """KiB of memory that the threads of one program can share; of an unknown one, the least."""
    capability = divmod(int(arch.removeprefix("sm")), 10)
    return (architecture.shared_bytes(capability) or _LEAST << 10) >> 10
