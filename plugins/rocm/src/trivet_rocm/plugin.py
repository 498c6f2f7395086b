"""The hooks of the ROCm plugin; the entry point names this module.

It has no hook for memory or collectives: torch's caching allocator and RCCL, through
``torch.distributed``, serve behind core's contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from trivet.contracts import DeviceInfo
from trivet_rocm.discovery import this_machine
from trivet_triton import kernels, on_torch


def trivet_probe() -> bool | str:
    """Whether a GPU is here that this package, this torch and this driver can use."""
    return this_machine().reason or True


def trivet_devices() -> Sequence[DeviceInfo]:
    """The visible GPUs; index ``i`` is torch's ``cuda:i``, as its build for HIP calls them."""
    return list(this_machine().devices)


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """Triton's kernels where Triton is installed, then torch's."""
    del device
    written = in_triton() if find_spec("triton") else []
    return [function for m in (*written, *modules(on_torch)) for function in offered(m)]


def in_triton() -> list[ModuleType]:
    """The modules of Triton kernels, which are told of AMD's devices."""
    import_module("trivet_rocm.target")
    return modules(kernels)


def modules(folder: ModuleType) -> list[ModuleType]:
    """The modules of a folder, imported, by name: a new file is found by itself."""
    names = sorted(m.name for m in iter_modules(folder.__path__))
    return [import_module(f"{folder.__name__}.{name}") for name in names]


def offered(module: ModuleType) -> Sequence[Callable[..., Any]]:
    """What a module implements, in the order in which it is written."""
    found = vars(module).values()
    return [f for f in found if hasattr(f, "__trivet__") and f.__module__ == module.__name__]


def trivet_capture(device: DeviceInfo) -> object:
    """HIP graphs, through torch."""
    from trivet_triton.graphs import GraphCapturer

    return GraphCapturer(device.index)


def trivet_kernels() -> object:
    """The Triton kernels, for ``trivet kernels`` and ``trivet tune``; no GPU is needed to ask."""
    return import_module("trivet_rocm.kernel_set").kernel_set()


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """What an engine should use here unless it knows better."""
    del device
    return {
        "block_size": (16, "a block is a tile of the matrix instructions; little stays unused"),
        "layout": ("NHD", "a token's keys lie together, so that writing them is one copy"),
        "dtype": (
            "bfloat16",
            "matrix instructions multiply it at full rate, and its range is that of float32",
        ),
    }
