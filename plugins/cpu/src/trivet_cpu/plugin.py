"""The hooks of the CPU plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from trivet.contracts import DeviceInfo
from trivet_cpu._library import library
from trivet_cpu.machine import this_machine

BEFORE_KERNELS: Final = ("dense_attention",)
KERNELS: Final = (
    "activation",
    "attention",
    "kv_cache",
    "layer_norm",
    "norm",
    "qk_norm",
    "rotary",
    "rotary_kv_cache",
    "sampling",
)
AFTER: Final = ("linear", "embedding", "greedy_sampling")
"""Modules of implementations, in the order in which they are preferred; none lists its functions
twice."""


def trivet_probe() -> bool | str:
    """The CPU is always here."""
    return True


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device: the machine that runs this process."""
    return [this_machine()]


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """Torch where it is faster, the kernels where they were built, then torch for the rest."""
    del device
    kernels = () if library().reason else KERNELS
    modules = [import_module(f"trivet_cpu.{n}") for n in (*BEFORE_KERNELS, *kernels, *AFTER)]
    return [function for module in modules for function in offered(module)]


def offered(module: ModuleType) -> Sequence[Callable[..., Any]]:
    """What a module implements, in the order in which it is written, or as it says itself."""
    own: Callable[[], Sequence[Callable[..., Any]]] | None = getattr(module, "measured", None)
    if own is not None:
        return own()
    found = vars(module).values()
    return [f for f in found if hasattr(f, "__trivet__") and f.__module__ == module.__name__]


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
