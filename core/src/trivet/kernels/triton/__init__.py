"""What vendors share that write their kernels in Triton; nothing here names a vendor.

A ``Kernel`` is a jitted function with the types of its arguments. A ``Variant`` of it has every
constant fixed: it is compiled ahead of time without a device, interpreted on CPU tensors, or
launched on a device without Triton's dispatch. ``Tuned`` chooses constants by size from a table.
A ``KernelSet`` is what a plugin's hook ``trivet_kernels`` returns: ``trivet kernels`` compiles its
variants ahead of time, ``trivet tune`` measures its constants.

Importing this package imports no Triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet.kernels.triton.code_facts import CodeFacts
    from trivet.kernels.triton.interpreted import (
        NOT_VERIFIED,
        TESTED,
        Interpreted,
        as_interpreted,
        available,
        launcher,
    )
    from trivet.kernels.triton.kernel import Kernel, Settled, Variant
    from trivet.kernels.triton.kernel_set import KernelSet, Stopwatch, Trials
    from trivet.kernels.triton.tuned import Tuned

__all__ = [
    "NOT_VERIFIED",
    "TESTED",
    "CodeFacts",
    "Interpreted",
    "Kernel",
    "KernelSet",
    "Settled",
    "Stopwatch",
    "Trials",
    "Tuned",
    "Variant",
    "as_interpreted",
    "available",
    "launcher",
]

_HOMES: Final = {
    **dict.fromkeys(
        ("NOT_VERIFIED", "TESTED", "Interpreted", "as_interpreted", "available", "launcher"),
        "trivet.kernels.triton.interpreted",
    ),
    "CodeFacts": "trivet.kernels.triton.code_facts",
    "Kernel": "trivet.kernels.triton.kernel",
    "Settled": "trivet.kernels.triton.kernel",
    "Variant": "trivet.kernels.triton.kernel",
    "KernelSet": "trivet.kernels.triton.kernel_set",
    "Stopwatch": "trivet.kernels.triton.kernel_set",
    "Trials": "trivet.kernels.triton.kernel_set",
    "Tuned": "trivet.kernels.triton.tuned",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
