"""The Triton kernels on CPU tensors, as a device whose word is ``interpreted``.

No entry point names this module: it is for the conformance kit on machines without a GPU,
``trivet-conformance run --plugin PATH-OF-THIS-FILE --quick``. What torch or other projects compute
is left out, since on the CPU those would be other kernels than on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

from trivet.contracts import DeviceInfo
from trivet.kernels import triton
from trivet_cuda.plugin import in_triton, offered
from trivet_triton.hardware import interpret_as


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
    found = [function for module in in_triton() for function in offered(module)]
    interpret_as(import_module("trivet_cuda.target").INTERPRETED)
    return found
