"""The contracts: everything that a vendor package reads, and nothing else.

This module has what operators and devices need; ``trivet.contracts.memory`` and
``trivet.contracts.collectives`` (with ``topology``) have the vocabulary of the other two legs,
``trivet.contracts.capture`` that of device graphs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet.contracts.cases import Budget, Cases, Relation, Scores
    from trivet.contracts.declaration import Operator, operator
    from trivet.contracts.device_info import DeviceInfo, Execution
    from trivet.contracts.implementation import Requirement, arch, device, feature, implements
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

__all__ = [
    "CONTRACT",
    "Budget",
    "Cases",
    "DeviceInfo",
    "Execution",
    "Operator",
    "Relation",
    "Requirement",
    "Scores",
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

_HOMES: Final = ("version", "device_info", "cases", "terms", "implementation", "declaration")
"""Modules that have these names, the cheapest first: discovery pays only for what it reads."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        modules = (importlib.import_module(f"{__name__}.{home}") for home in _HOMES)
        return globals().setdefault(name, next(vars(m)[name] for m in modules if name in vars(m)))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
