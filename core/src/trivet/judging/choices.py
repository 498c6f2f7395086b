"""Which candidates of a choice may be chosen, and which scores they may have."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts.cases import Scores


def open_candidates(scores: Scores) -> Tensor:
    """The candidates that may be chosen: their upper bound reaches the largest lower one."""
    nan = scores.upper.isnan()
    best = scores.lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    reached = scores.upper >= best.amax(-1, keepdim=True)
    return torch.where(nan.any(-1, keepdim=True), nan, reached)


def possible_score(scores: Scores, result: Tensor) -> Tensor:
    """Which scores beside an index lie within the bounds of the best; a NaN wins here, too."""
    low, high = (bound.amax(-1).to(result.dtype) for bound in (scores.lower, scores.upper))
    inside = (result >= low) & (result <= high)
    return inside | (result.isnan() & high.isnan())
