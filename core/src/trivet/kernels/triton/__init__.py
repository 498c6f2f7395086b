"""What vendors share that write their kernels in Triton; nothing here names a vendor.

A ``Kernel`` is a jitted function with the types of its arguments. A ``Variant`` of it has every
constant fixed: it is compiled ahead of time without a device, interpreted on CPU tensors, or
launched on a device without Triton's dispatch. ``Tuned`` chooses constants by size from a table.

Importing this package imports no Triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet.kernels.triton.interpreted import (
        NOT_VERIFIED,
        TESTED,
        Interpreted,
        as_interpreted,
        available,
        launcher,
    )
    from trivet.kernels.triton.kernel import Kernel, Variant
    from trivet.kernels.triton.tuned import Tuned

__all__ = [
    "NOT_VERIFIED",
    "TESTED",
    "Interpreted",
    "Kernel",
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
    "Kernel": "trivet.kernels.triton.kernel",
    "Variant": "trivet.kernels.triton.kernel",
    "Tuned": "trivet.kernels.triton.tuned",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
