"""The architectures that kernels are compiled for, and what the Triton kernels are told of them.

Importing it states NVIDIA's devices to the kernels of ``trivet_triton``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from triton.backends.compiler import GPUTarget

from trivet_cuda.discovery import architecture
from trivet_triton import hardware
from trivet_triton.hardware import Architecture, Vendor

TABLES: Final = Path(__file__).with_name("tables")
"""Measured configs, one file an architecture."""

TARGETS: Final = {
    f"sm{number}": GPUTarget("cuda", number, 32) for number in (80, 86, 89, 90, 100, 120)
}
"""Names as in tables and gates -> what Triton compiles for."""

INTERPRETED: Final = "sm90"
"""The architecture whose constants hold where kernels are interpreted."""

_PREFIX: Final = "sm"
_LEAST: Final = 99
_NO_GROUPS: Final = 163
"""KiB up to which single warps multiply, out of registers, so that tall tiles need many."""
_OVERLAPS: Final = 90
"""The first that places a kernel's programs while the one before it ends."""


@cache
def arch_of(device: torch.device) -> str:
    """The architecture of a device, by its compute capability; ``sm90`` of the CPU.

    It need not be one of ``TARGETS``: a device of another one has no table of its own.
    """
    if device.type == "cpu":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    return f"{_PREFIX}{major}{minor}"


def described(name: str) -> Architecture | None:
    """What kernels are told of an architecture by its name."""
    number = name.removeprefix(_PREFIX)
    if number == name or not number.isdecimal():
        return None
    shared = shared_kib(name)
    tall = {"num_warps": 8, "maxnreg": 255}
    return Architecture(name, shared, tables=TABLES, tall_tiles={} if shared > _NO_GROUPS else tall)


@cache
def shared_kib(arch: str) -> int:
    """KiB of memory that the threads of one program can share; of an unknown one, the least."""
    capability = divmod(int(arch.removeprefix(_PREFIX)), 10)
    return (architecture.shared_bytes(capability) or _LEAST << 10) >> 10


def overlapping(target: Any) -> Mapping[str, Any] | None:
    """Programmatic dependent launch."""
    return {"launch_pdl": True} if target.arch >= _OVERLAPS else None


VENDOR: Final = Vendor(
    backend="cuda",
    kind="cuda",
    described=described,
    arch_of=lambda index: arch_of(torch.device("cuda", index)),
    processors=lambda index: torch.cuda.get_device_properties(index).multi_processor_count,
    here=lambda: torch.version.hip is None,
    overlapping=overlapping,
)
hardware.add(VENDOR)
