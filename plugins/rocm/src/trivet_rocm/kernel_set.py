"""The Triton kernels on AMD's devices, for the commands that compile and measure them."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules
from typing import Final

import torch

from trivet.kernels.triton import KernelSet
from trivet_rocm import target
from trivet_rocm.assembly import read
from trivet_rocm.discovery.architecture import KNOWN
from trivet_rocm.target import TARGETS, arch_of
from trivet_triton import kernels
from trivet_triton.stopwatch import GraphStopwatch
from trivet_triton.trials import trials

GATES: Final = Path(__file__).with_name("gates.toml")
_DRIVER: Final = Path("/sys/module/amdgpu/version")


class Stopwatch(GraphStopwatch):
    """A ``trivet.kernels.triton.Stopwatch`` of one device."""

    def driver(self) -> str:
        """The driver's version; HIP's where the kernel brings the driver itself."""
        if _DRIVER.exists():
            return _DRIVER.read_text(encoding="ascii").strip()
        return f"HIP {torch.version.hip}"


def kernel_set() -> KernelSet:
    """Every module of ``trivet_triton.kernels``; a new file is found by itself."""
    here = torch.device("cuda" if torch.cuda.is_available() and torch.version.hip else "cpu")
    names = sorted(m.name for m in iter_modules(kernels.__path__))
    return KernelSet(
        modules=tuple(f"{kernels.__name__}.{name}" for name in names),
        targets=TARGETS,
        read=read,
        gates=GATES,
        arch_of=arch_of,
        stopwatch=Stopwatch,
        trials=trials(KNOWN[arch_of(here)].lds_kib),
        home=target.__name__,
    )
