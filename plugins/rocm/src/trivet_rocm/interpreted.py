"""The Triton kernels on CPU tensors with AMD's constants, as a device whose word is interpreted.

No entry point names this module: it is for the conformance kit on machines without a GPU,
``trivet-conformance run --plugin PATH-OF-THIS-FILE --quick``. The interpreter runs programs, not
wavefronts: it verifies indices, masks and the algorithm, not code of AMD's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

from trivet.contracts import DeviceInfo
from trivet.kernels import triton
from trivet_rocm.plugin import in_triton, offered
from trivet_triton.hardware import interpret_as


def trivet_probe() -> Literal[True] | str:
    """Whether Triton's interpreter is here, in a version that was tested."""
    return triton.available()


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device, the CPU, with the constants of one architecture."""
    found = DeviceInfo("interpreted", name="trivet-rocm in Triton's interpreter")
    return [triton.as_interpreted(found)]


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """Every implementation in Triton."""
    del device
    found = [function for module in in_triton() for function in offered(module)]
    interpret_as(import_module("trivet_rocm.target").INTERPRETED)
    return found
