"""The contracts: everything that a vendor package reads, and nothing else.

This module has what operators and devices need; ``trivet.contracts.memory`` and
``trivet.contracts.collectives`` have the vocabulary of the other two legs.
"""

from __future__ import annotations

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
