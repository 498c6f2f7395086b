"""The contracts: everything that a vendor package reads, and nothing else."""

from __future__ import annotations

from trivet.contracts.cases import Budget, Cases
from trivet.contracts.device import DeviceInfo, Execution
from trivet.contracts.implementation import (
    Claim,
    Implementation,
    Requirement,
    arch,
    device,
    feature,
    implements,
)
from trivet.contracts.operator import Operator, operator
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
