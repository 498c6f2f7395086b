"""The Triton kernels of this package, for the commands that compile and measure them."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules
from typing import Final

import torch

from trivet.kernels.triton import KernelSet
from trivet_cuda import triton_kernels
from trivet_cuda.assembly import read
from trivet_cuda.stopwatch import GraphStopwatch
from trivet_cuda.target import TARGETS, arch_of, shared_kib
from trivet_cuda.trials import trials

GATES: Final = Path(__file__).with_name("gates.toml")


def kernel_set() -> KernelSet:
    """Every module of ``triton_kernels``; a new file is found by itself."""
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = sorted(m.name for m in iter_modules(triton_kernels.__path__))
    return KernelSet(
        modules=tuple(f"{triton_kernels.__name__}.{name}" for name in names),
        targets=TARGETS,
        read=read,
        gates=GATES,
        arch_of=arch_of,
        stopwatch=GraphStopwatch,
        trials=trials(shared_kib(arch_of(here))),
    )
