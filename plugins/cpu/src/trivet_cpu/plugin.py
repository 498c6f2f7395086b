"""The hooks of the CPU plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from trivet.contracts import DeviceInfo
from trivet_cpu import compiled, on_torch
from trivet_cpu.collectives import parts
from trivet_cpu.kernel_library import library
from trivet_cpu.machine import this_machine
from trivet_cpu.memory import open_memory


def trivet_probe() -> bool | str:
    """The CPU is always here."""
    return True


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device: the machine that runs this process."""
    return [this_machine()]


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """The kernels where they were built, then torch; first of all torch where it says so."""
    del device
    torch = modules(on_torch)
    kernels = [] if library().reason else modules(compiled)
    first = [m for m in torch if getattr(m, "BEFORE_COMPILED", False)]
    rest = [m for m in torch if m not in first]
    return [function for m in (*first, *kernels, *rest) for function in offered(m)]


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


def trivet_memory(device: DeviceInfo) -> object:
    """Mapped pages for large buffers; None where the system has none, and torch serves."""
    del device
    return open_memory()


def trivet_collectives(device: DeviceInfo) -> object:
    """Shared memory between the ranks of this machine, and its NUMA nodes."""
    del device
    return parts


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """What an engine should use here unless it knows better."""
    fast = "amx_bf16" in device.features
    return {
        "block_size": (16, "keys are read in runs of 64, which 16 divides; little is left unused"),
        "layout": ("NHD", "a token's keys lie together, so that writing them is one copy"),
        "dtype": (
            "float32",
            "exact on every machine"
            + ("; bfloat16 is faster here, its products have instructions" if fast else ""),
        ),
    }
