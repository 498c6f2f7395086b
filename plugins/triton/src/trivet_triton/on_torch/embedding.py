"""embedding: torch's own gather of rows."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from trivet.contracts import implements

PROMISES: Final = frozenset({"graph_safe", "deterministic", "batch_invariant"})  # it copies rows


@implements("embedding@1", name="torch", graph_safe=True, deterministic=True, batch_invariant=True)
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Gathers rows with torch."""
    return torch.embedding(weight, ids)
