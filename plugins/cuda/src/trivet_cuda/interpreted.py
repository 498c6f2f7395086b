"""This package's Triton kernels on CPU tensors, as a device whose word is ``interpreted``.

No entry point names this module: it is for the conformance kit on machines without a GPU,
``trivet-conformance run --plugin PATH-OF-THIS-FILE --quick``. What torch or other projects compute
is left out, since on the CPU those would be other kernels than on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from trivet.contracts import DeviceInfo
from trivet.kernels import triton
from trivet_cuda import triton_kernels
from trivet_cuda.plugin import modules, offered


def trivet_probe() -> Literal[True] | str:
    """Whether Triton's interpreter is here, in a version that was tested."""
    return triton.available()


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device, the CPU: without a table of its own, so that mostly authors' constants hold."""
    found = DeviceInfo("interpreted", name="trivet-cuda in Triton's interpreter")
    return [triton.as_interpreted(found)]


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """Every implementation in Triton."""
    del device
    return [function for module in modules(triton_kernels) for function in offered(module)]
