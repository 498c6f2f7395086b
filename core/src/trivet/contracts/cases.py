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


Composed = Callable[[Mapping[str, Callable[..., Any]], Mapping[str, Any]], list[torch.Tensor]]
"""(operators by name, arguments by name) -> the results that a fused operator has."""


@dataclass(frozen=True)
class Relation:
    """A second call whose results follow from those of the first.

    Args:
        name: what is changed, in a few words.
        arguments: the arguments of the second call, from those of the first.
        results: (results of the first call, its arguments) -> results of the second.
        bitwise: whether deterministic, batch invariant code must keep every bit.
        derived: whether the kit found it itself; then the reference need not have it.
    """

    name: str
    arguments: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    results: Callable[[list[torch.Tensor], Mapping[str, Any]], list[torch.Tensor]]
    bitwise: bool = True
    derived: bool = False


@dataclass(frozen=True)
class Cases:
    """How to make valid calls of an operator.

    Args:
        sizes: values of the dims, at least one set; small, odd and model-like ones.
        scalars: sets of scalar arguments that differ from the defaults.
        inputs: makes index tensors, tables and required scalars; the rest is drawn normal.
        composed: what a fused operator is made of, from its parts.
        relations: calls whose results follow from another call's.
    """

    sizes: Sequence[Mapping[str, int]]
    scalars: Sequence[Mapping[str, Any]] = ({},)
    inputs: Inputs | None = None
    composed: Composed | None = None
    relations: Sequence[Relation] = ()


@dataclass(frozen=True)
class Scores:
    """What a choice was made among: bounds of every candidate's score.

    A candidate may be chosen if its upper bound reaches the largest of the lower ones. Bounds
    that are equal say that only exact ties are open; ``-inf`` as a lower bound, that a candidate
    need not take part. A NaN is chosen before everything else.

    Args:
        lower: float64, the result's dims and one more.
        upper: likewise.
        first: the index that the first candidate has.
    """

    lower: torch.Tensor
    upper: torch.Tensor
    first: int = 0


@dataclass(frozen=True)
class Budget:
    """How far results may be from the fp64 oracle.

    ``statistical``: error statistics at most ``factor`` times those of the reference in the same
    dtype, plus a rounding floor. ``exact``: bit-equal (copies). ``choice``: integers are indices,
    equal to the oracle's unless ``scores`` leaves the choice open; a floating result is the score
    of what was chosen.

    Args:
        kind: ``statistical``, ``exact`` or ``choice``.
        factor: of a statistical budget.
        scores: for choices, the scores of a call; it takes the operator's arguments, in float64.
    """

    kind: str = "statistical"
    factor: float = 2.0
    scores: Callable[..., Scores] | None = None
