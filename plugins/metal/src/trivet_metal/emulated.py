"""This package's kernels on CPU tensors, as a device whose word is ``emulated``.

No entry point names this module: ``auto`` never finds it. It is for the conformance kit on
machines without a Mac's GPU, ``trivet-conformance run --plugin metal --execution emulated``, and
for ``trivet.device("metal")`` where ``TRIVET_METAL_EMULATOR`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from trivet.contracts import DeviceInfo, Execution
from trivet_metal import families, plugin
from trivet_metal.backend import emulated
from trivet_metal.discovery.machine import KIND
from trivet_metal.status import STATUS

NOT_VERIFIED: Final = (
    f"{STATUS}: what Apple's compiler accepts and generates, rounding of its functions, "
    "weak memory ordering across threadgroups, and speed are not verified"
)


def trivet_probe() -> Literal[True] | str:
    """Whether the emulator and a compiler for it are here."""
    return emulated.available()


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device, the CPU, with the limits of the oldest family unless another is asked for."""
    backend = emulated.chosen()
    family = families.family_of(backend.chip) or families.OLDEST
    limits = families.limits(family)
    return [
        DeviceInfo(
            KIND,
            name=f"Apple {backend.chip.upper()}, emulated" + ("" if backend.check else " (fast)"),
            arch=families.architectures(family),
            features=frozenset({"unified_memory", "bfloat16"}),
            dtypes=frozenset({"float32", "float16", "bfloat16"}),
            subgroup_width=limits.simd_width,
            shared_bytes=limits.threadgroup_bytes,
            execution=Execution.EMULATED,
            notes=(NOT_VERIFIED,),
        )
    ]


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """All that the GPU has; products are torch's on the CPU here, behind the same guards."""
    return plugin.trivet_implementations(device)


def trivet_collectives(device: DeviceInfo) -> object:
    """Staged as on a Mac, from CPU tensors to CPU tensors."""
    return plugin.trivet_collectives(device)


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """What an engine should use here."""
    return plugin.trivet_defaults(device)
