"""The Triton kernels on NVIDIA's devices, for the commands that compile and measure them."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules
from typing import Final

import torch

from trivet.kernels.triton import KernelSet
from trivet_cuda import target
from trivet_cuda.assembly import read
from trivet_cuda.stopwatch import GraphStopwatch
from trivet_cuda.target import TARGETS, arch_of, shared_kib
from trivet_triton import kernels
from trivet_triton.trials import trials

GATES: Final = Path(__file__).with_name("gates.toml")


def kernel_set() -> KernelSet:
    """Every module of ``trivet_triton.kernels``; a new file is found by itself."""
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = sorted(m.name for m in iter_modules(kernels.__path__))
    return KernelSet(
        modules=tuple(f"{kernels.__name__}.{name}" for name in names),
        targets=TARGETS,
        read=read,
        gates=GATES,
        arch_of=arch_of,
        stopwatch=GraphStopwatch,
        trials=trials(shared_kib(arch_of(here))),
        home=target.__name__,
    )
