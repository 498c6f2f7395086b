"""The contracts: everything that a vendor package reads, and nothing else."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet.contracts.cases import Budget, Cases
    from trivet.contracts.declaration import Operator, operator
    from trivet.contracts.device_info import DeviceInfo, Execution
    from trivet.contracts.implementation import (
        Claim,
        Implementation,
        Requirement,
        arch,
        device,
        feature,
        implements,
    )
    from trivet.contracts.terms import (
        Term,
        absent,
        between,
        contiguous,
        divisible,
        dtype,
        equal,
        offset_aligned,
        one_of,
        present,
        rank,
        rows,
    )
    from trivet.contracts.version import CONTRACT

_LAZY: Final = {
    "Budget": "trivet.contracts.cases",
    "CONTRACT": "trivet.contracts.version",
    "Cases": "trivet.contracts.cases",
    "Claim": "trivet.contracts.implementation",
    "DeviceInfo": "trivet.contracts.device_info",
    "Execution": "trivet.contracts.device_info",
    "Implementation": "trivet.contracts.implementation",
    "Operator": "trivet.contracts.declaration",
    "Requirement": "trivet.contracts.implementation",
    "Term": "trivet.contracts.terms",
    "absent": "trivet.contracts.terms",
    "arch": "trivet.contracts.implementation",
    "between": "trivet.contracts.terms",
    "contiguous": "trivet.contracts.terms",
    "device": "trivet.contracts.implementation",
    "divisible": "trivet.contracts.terms",
    "dtype": "trivet.contracts.terms",
    "equal": "trivet.contracts.terms",
    "feature": "trivet.contracts.implementation",
    "implements": "trivet.contracts.implementation",
    "offset_aligned": "trivet.contracts.terms",
    "one_of": "trivet.contracts.terms",
    "operator": "trivet.contracts.declaration",
    "present": "trivet.contracts.terms",
    "rank": "trivet.contracts.terms",
    "rows": "trivet.contracts.terms",
}
"""Public names whose modules are imported at first use."""

__all__ = [
    "CONTRACT",
    "Budget",
    "Cases",
    "Claim",
    "DeviceInfo",
    "Execution",
    "Implementation",
    "Operator",
    "Requirement",
    "Term",
    "absent",
    "arch",
    "between",
    "contiguous",
    "device",
    "divisible",
    "dtype",
    "equal",
    "feature",
    "implements",
    "offset_aligned",
    "one_of",
    "operator",
    "present",
    "rank",
    "rows",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = found
        return found
    msg = f"module 'trivet.contracts' has no attribute {name!r}"
    raise AttributeError(msg)
