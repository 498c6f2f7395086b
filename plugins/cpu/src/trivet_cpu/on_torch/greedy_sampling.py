"""sample_token without a temperature: torch's argmax, the fastest there is."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from trivet.contracts import absent, implements
from trivet.errors import DomainError
from trivet_cpu.kernel_library import BIND

PROMISES: Final = frozenset({"graph_safe", "deterministic", "batch_invariant"})
"""It compares numbers of one row."""


@implements(
    "sample_token@1",
    name="torch",
    domain=[absent("temperature")],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def sample_token(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seed: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Takes torch's argmax: on the CPU it gives the lowest id, and a NaN is the largest."""
    if temperature is not None:
        msg = "sample_token: temperature is given"
        raise DomainError(msg, operator="sample_token", fix=BIND)
    del top_k, top_p, min_p, seed, position  # limits without a temperature limit nothing
    return torch.argmax(logits, -1)
