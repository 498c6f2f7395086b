"""Tensors that lie at the same place on every rank, where each can address all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from trivet.contracts.collectives import Symmetric


class SymmetricTensor:
    """A tensor of each rank, allocated by all of them together.

    Operations that take it instead of a tensor may work on it without staging. Whoever reads or
    writes another rank's tensor sees to it that both know when, by a barrier for instance.

    Args:
        provider: whose memory it is.
        rank: position of this process.
        shape: shape of each tensor.
        dtype: dtype of each tensor.
    """

    def __init__(
        self, provider: Symmetric, rank: int, shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        self._provider = provider
        self._memory = provider.symmetric(nbytes)
        self.peers = tuple(m[:nbytes].view(dtype).view(*shape) for m in self._memory)
        """The tensor of each rank, by rank."""
        self.tensor = self.peers[rank]
        """This rank's own."""

    def release(self) -> None:
        """Give the memory back; every rank calls it, and uses no view of it afterwards."""
        self._provider.release(self._memory)
