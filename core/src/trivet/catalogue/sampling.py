"""Choosing the next token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivet.contracts import Budget, Cases, operator


def _oracle(logits: Tensor) -> Tensor:
    """Walks each row and keeps the first of the largest; a NaN beats everything."""
    picks = []
    for row in logits.tolist():
        best = 0
        for i, value in enumerate(row):
            if math.isnan(value):
                best = i
                break
            if value > row[best]:
                best = i
        picks.append(best)
    return torch.tensor(picks, dtype=torch.int64)


@operator(
    shapes={"logits": "seqs vocab"},
    returns=[("seqs", "int64")],
    moved=[("seqs vocab", "logits"), ("seqs", "int64")],
    cases=Cases(
        sizes=(
            {"seqs": 3, "vocab": 101},
            {"seqs": 1, "vocab": 70_001},
            {"seqs": 2, "vocab": 1},
            {"seqs": 0, "vocab": 7},
        ),
    ),
    budget=Budget("choice"),
    oracle=_oracle,
    properties=("deterministic", "batch_invariant"),
)
def sample_token(logits: Tensor) -> Tensor:
    """Chooses each sequence's next token id (int64) greedily; ties go to the lowest id.

    ``logits`` is ``[seqs, vocab]``. A row with NaN gives the lowest id of a NaN, so that a broken
    model is seen rather than hidden.
    """
    top = logits.amax(-1, keepdim=True)
    hit = (logits == top) | logits.isnan()
    return hit.to(torch.uint8).argmax(-1)
