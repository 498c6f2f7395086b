"""The architectures that kernels are compiled for, and what the Triton kernels are told of them.

Importing it states AMD's devices to the kernels of ``trivet_triton``. Constants that are AMD's own
stand in ``constants``; tables have what was measured on hardware, which is nothing yet.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import torch
from triton.backends.compiler import GPUTarget

from trivet_rocm import constants
from trivet_rocm.discovery import architecture
from trivet_triton import hardware
from trivet_triton.hardware import Architecture, Vendor

TABLES: Final = Path(__file__).with_name("tables")
"""Measured configs, one file an architecture."""

TARGETS: Final = {
    name: GPUTarget("hip", name, architecture.KNOWN[name].wavefront)
    for name in architecture.COMPILED
}
"""Names as in tables and gates -> what Triton compiles for."""

_NARROW: Final = 32

INTERPRETED: Final = "gfx942"
"""The architecture whose constants hold where kernels are interpreted."""


@cache
def arch_of(device: torch.device) -> str:
    """The architecture of a device; ``gfx942`` of the CPU.

    Devices with the facts of another architecture have that one's tables.
    """
    if device.type == "cpu":
        return INTERPRETED
    found = architecture.base(torch.cuda.get_device_properties(device).gcnArchName)
    return architecture.SAME_CODE.get(found, found)


@cache
def described(name: str) -> Architecture | None:
    """What kernels are told of an architecture by its name."""
    known = architecture.KNOWN.get(name)
    if known is None:
        return None
    return Architecture(
        name,
        known.lds_kib,
        lanes=known.wavefront,
        tables=TABLES,
        tall_tiles=constants.TALL if known.wavefront == _NARROW else {},
        fp8=None if known.fp8 is None else getattr(torch, known.fp8),
        own=constants.OF_FAMILY[known.family].table(),
    )


VENDOR: Final = Vendor(
    backend="hip",
    kind="cuda",  # torch's build for HIP calls its devices so
    described=described,
    arch_of=lambda index: arch_of(torch.device("cuda", index)),
    processors=lambda index: torch.cuda.get_device_properties(index).multi_processor_count,
    here=lambda: torch.version.hip is not None,
)
hardware.add(VENDOR)
