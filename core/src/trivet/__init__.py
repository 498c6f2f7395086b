"""trivet: a thin stand between ML engines and the hardware under them.

Three contracts (operators, memory, collectives), vendor packages that implement them, found
through entry points. Importing this package loads no vendor and starts no device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet import contracts, errors
    from trivet.binding.workspace import workspace
    from trivet.contracts.implementation import implements
    from trivet.contracts.version import CONTRACT
    from trivet.devices import Device, device
    from trivet.selection.authority import prefer, require

__version__ = "0.1.0"

_LAZY: Final = {
    "CONTRACT": "trivet.contracts.version",
    "contracts": "trivet.contracts",
    "errors": "trivet.errors",
    "implements": "trivet.contracts.implementation",
    "Device": "trivet.devices",
    "device": "trivet.devices",
    "prefer": "trivet.selection.authority",
    "require": "trivet.selection.authority",
    "workspace": "trivet.binding.workspace",
}
"""Public names whose modules are imported at first use."""

__all__ = [
    "CONTRACT",
    "Device",
    "__version__",
    "contracts",
    "device",
    "errors",
    "implements",
    "prefer",
    "require",
    "workspace",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = importlib.import_module(_LAZY[name])
        found = module if _LAZY[name].endswith(f".{name}") else getattr(module, name)
        globals()[name] = found
        return found
    msg = f"module 'trivet' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
