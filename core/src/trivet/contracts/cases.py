"""Test cases and error budgets, as part of a declaration.

Generators are plain torch so that core needs no test library; the conformance kit multiplies
them with its own sizes and value distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Inputs = Callable[[Mapping[str, int], torch.dtype, torch.Generator], dict[str, Any]]
"""(dims, activation dtype, generator) -> the arguments that random numbers cannot make."""


@dataclass(frozen=True)
class Cases:
    """How to make valid calls of an operator.

    Args:
        sizes: values of the dims, at least one set; small, odd and model-like ones.
        scalars: sets of scalar arguments that differ from the defaults.
        inputs: makes index tensors, tables and required scalars; the rest is drawn normal.
    """

    sizes: Sequence[Mapping[str, int]]
    scalars: Sequence[Mapping[str, Any]] = ({},)
    inputs: Inputs | None = None


@dataclass(frozen=True)
class Budget:
    """How far results may be from the fp64 oracle.

    ``statistical``: error statistics at most ``factor`` times those of the reference in the same
    dtype, plus a rounding floor. ``exact``: bit-equal (copies). ``choice``: indices; equal unless
    the oracle's scores tie.
    """

    kind: str = "statistical"
    factor: float = 2.0
