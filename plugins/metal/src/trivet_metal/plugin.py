"""The hooks of the Metal plugin; the entry point names this module.

Where there is no usable GPU and ``TRIVET_METAL_EMULATOR`` is set, they are those of ``emulated``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from trivet.contracts import DeviceInfo, Execution
from trivet_metal.backend import emulated as emulation
from trivet_metal.discovery import this_machine


def trivet_probe() -> bool | str:
    """Whether a GPU is here that this package, this torch and this macOS can use.

    An emulator that was asked for stands in where there is none.
    """
    found = this_machine()
    if found.device is not None:
        return True
    return emulation.available() if emulation.wanted() else found.reason


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device: a Mac has one GPU, and torch calls it ``mps``."""
    found = this_machine().device
    if found is not None:
        return [found]
    stand_in = import_module("trivet_metal.emulated")
    devices: Sequence[DeviceInfo] = stand_in.trivet_devices()
    return devices


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """The kernels, then what goes to torch."""
    del device
    from trivet_metal import operators

    return [function for module in modules(operators) for function in offered(module)]


def modules(folder: ModuleType) -> list[ModuleType]:
    """The modules of a folder, imported, by name: a new file is found by itself."""
    names = sorted(m.name for m in iter_modules(folder.__path__))
    return [import_module(f"{folder.__name__}.{name}") for name in names]


def offered(module: ModuleType) -> Sequence[Callable[..., Any]]:
    """What a module implements, in the order in which it is written."""
    found = vars(module).values()
    return [f for f in found if hasattr(f, "__trivet__") and f.__module__ == module.__name__]


def trivet_memory(device: DeviceInfo) -> object:
    """What torch and Metal count, and buffers whose addresses are handles."""
    from trivet_metal.memory import MetalMemory

    if device.execution != Execution.HARDWARE:  # torch's memory of the host serves
        return None
    return MetalMemory(device.torch, device.memory_bytes)


def trivet_collectives(device: DeviceInfo) -> object:
    """Gloo, staged through the processor; loaded when a group is opened."""
    hardware = device.execution == Execution.HARDWARE

    def parts() -> list[object]:
        from trivet_metal.collectives import MetalTopology, StagedRanks

        return [StagedRanks, MetalTopology()] if hardware else [StagedRanks]

    return parts


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """What an engine should use here unless it knows better."""
    name = "bfloat16" if "bfloat16" in device.dtypes else "float16"
    if device.execution != Execution.HARDWARE:
        name = "float32"
    reasons = {
        "bfloat16": "half the bytes of float32 at its range, and memory is what decoding waits for",
        "float16": "half the bytes of float32; this macOS has no bfloat16",
        "float32": "emulated threads are slow in any dtype, so that the most exact one is taken",
    }
    return {
        "block_size": (16, "a simdgroup's lanes stay within one block"),
        "layout": ("NHD", "a token's keys lie together, so that writing them is one copy"),
        "dtype": (name, reasons[name]),
    }
