"""The tensors of a KV cache: one for keys and one for values in each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import torch

from trivet.errors import InvalidBuffer


class KvCaches:
    """The caches of all layers: ``caches[layer]`` is ``(k_cache, v_cache)``.

    Each is a base tensor of its own, ``[blocks, block_size, kv_heads, head_dim]``: views of one
    base are written at offset 0 by some versions of inductor once shapes are symbolic.

    Args:
        layers: the tensors.
        give_back: is called once by ``release``.
    """

    def __init__(
        self,
        layers: tuple[tuple[torch.Tensor, torch.Tensor], ...],
        give_back: Callable[[], None],
    ) -> None:
        self._layers = layers
        self._give_back = give_back
        self._released = False
        self.nbytes = sum(k.nbytes + v.nbytes for k, v in layers)

    @property
    def released(self) -> bool:
        """True after ``release``."""
        return self._released

    def release(self) -> None:
        """Give the memory back; a second call does nothing. No tensor is used afterwards."""
        if not self._released:
            self._released = True
            self._layers = ()
            self._give_back()

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._released:
            raise InvalidBuffer("these KV caches were released", fix="make new ones")
        return self._layers[layer]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(self._layers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
