"""embedding and sample_token: torch's own, which are right and fast on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from trivet.contracts import implements


@implements("embedding@1", name="torch", deterministic=True, batch_invariant=True)
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Gathers rows with torch."""
    return torch.embedding(weight, ids)


@implements("sample_token@1", name="torch", deterministic=True, batch_invariant=True)
def sample_token(logits: Tensor) -> Tensor:
    """Takes torch's argmax: on the CPU it gives the lowest id, and a NaN is the largest."""
    return torch.argmax(logits, -1)
