"""The stopwatch of one GPU, with NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from trivet_triton.stopwatch import GraphStopwatch as OfGraphs

_DRIVER: Final = Path("/sys/module/nvidia/version")


class GraphStopwatch(OfGraphs):
    """A ``trivet.kernels.triton.Stopwatch`` of one device."""

    def driver(self) -> str:
        """The driver's version; CUDA's where the system does not tell it."""
        if _DRIVER.exists():
            return _DRIVER.read_text(encoding="ascii").strip()
        return f"CUDA {torch._C._cuda_getDriverVersion()}"  # type: ignore[attr-defined] # noqa: SLF001
