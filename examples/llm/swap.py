"""Contents of cache blocks in host memory, while their request is put aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trivet.memory.kv.caches import KvCaches


@dataclass(frozen=True)
class Saved:
    """Blocks of each layer, keys and values, on the host."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]


class HostMemory:
    """Copies blocks out of the caches and back, layer by layer.

    Only requests that once ran are put aside, so no more than a batch of them is here.
    """

    def __init__(self, caches: KvCaches) -> None:
        self._caches = caches

    @torch.inference_mode()
    def save(self, blocks: Sequence[int]) -> Saved:
        """A copy on the host of the contents of some blocks."""
        rows = self._rows(blocks)
        return Saved([(k[rows].cpu(), v[rows].cpu()) for k, v in self._caches])

    @torch.inference_mode()
    def load(self, saved: Saved, first: int, blocks: Sequence[int]) -> None:
        """Copies what was saved, from its block ``first`` on, into other blocks."""
        if not blocks:
            return
        rows = self._rows(blocks)
        for caches, copies in zip(self._caches, saved.layers, strict=True):
            for cache, copy in zip(caches, copies, strict=True):
                cache[rows] = copy[first:].to(cache.device)

    def _rows(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, device=self._caches[0][0].device)
