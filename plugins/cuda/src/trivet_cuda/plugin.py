"""The hooks of the CUDA plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from trivet.contracts import DeviceInfo
from trivet_cuda import peers
from trivet_cuda.discovery import this_machine
from trivet_triton import kernels, on_torch


def trivet_probe() -> bool | str:
    """Whether a GPU is here that this package, this torch and this driver can use."""
    return this_machine().reason or True


def trivet_devices() -> Sequence[DeviceInfo]:
    """The visible GPUs; index ``i`` is torch's ``cuda:i``."""
    return list(this_machine().devices)


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """Triton's kernels where Triton is installed, then torch's; first of all torch's that say so.

    What does not fit the device is said by each implementation's own ``requires``. Other projects'
    kernels come last, and run only where an order list names them.
    """
    del device
    torch = modules(on_torch)
    written = in_triton() if find_spec("triton") else []
    first = [m for m in torch if getattr(m, "BEFORE_TRITON", False)]
    rest = [m for m in torch if m not in first]
    every = (*first, *written, *rest, *modules(peers))
    return [function for m in every for function in offered(m)]


def in_triton() -> list[ModuleType]:
    """The modules of Triton kernels, which are told of NVIDIA's devices."""
    import_module("trivet_cuda.target")
    return modules(kernels)


def modules(folder: ModuleType) -> list[ModuleType]:
    """The modules of a folder, imported, by name: a new file is found by itself."""
    names = sorted(m.name for m in iter_modules(folder.__path__))
    return [import_module(f"{folder.__name__}.{name}") for name in names]


def offered(module: ModuleType) -> Sequence[Callable[..., Any]]:
    """What a module implements, in the order in which it is written, or as it says itself."""
    own: Callable[[], Sequence[Callable[..., Any]]] | None = getattr(module, "measured", None)
    if own is not None:
        return own()
    found = vars(module).values()
    return [f for f in found if hasattr(f, "__trivet__") and f.__module__ == module.__name__]


def trivet_collectives(device: DeviceInfo) -> object:
    """Kernels over the memory of other GPUs, NCCL, and how the GPUs are connected."""
    del device
    from trivet_cuda.collectives import parts

    return parts


def trivet_capture(device: DeviceInfo) -> object:
    """CUDA graphs."""
    from trivet_triton.graphs import GraphCapturer

    return GraphCapturer(device.index)


def trivet_kernels() -> object:
    """The Triton kernels, for ``trivet kernels`` and ``trivet tune``; no GPU is needed to ask."""
    return import_module("trivet_cuda.kernel_set").kernel_set()


def trivet_memory(device: DeviceInfo) -> object:
    """Buffers whose addresses outlast a suspension; None where torch's allocator serves."""
    from trivet_cuda.memory import open_memory

    return open_memory(device.index)


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """What an engine should use here unless it knows better."""
    del device
    return {
        "block_size": (16, "a block is a tile of the tensor cores' products; little stays unused"),
        "layout": ("NHD", "a token's keys lie together, so that writing them is one copy"),
        "dtype": (
            "bfloat16",
            "the tensor cores multiply it at full rate, and its range is that of float32",
        ),
    }
