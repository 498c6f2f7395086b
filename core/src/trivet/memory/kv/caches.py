"""The tensors of a KV cache: one for keys and one for values in each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch

from trivet.errors import InvalidBuffer, NotResident
from trivet.memory.buffers import Buffer, Residency


class KvCaches:
    """The caches of all layers: ``caches[layer]`` is ``(k_cache, v_cache)``.

    Each is a base tensor of its own, ``[blocks, block_size, kv_heads, head_dim]``: views of one
    base are written at offset 0 by some versions of inductor once shapes are symbolic.

    Args:
        layers: the tensors.
        give_back: is called once by ``release``.
        buffers: what the tensors lie in, in the order k, v, k, v, ...; none where torch made them.
    """

    def __init__(
        self,
        layers: tuple[tuple[torch.Tensor, torch.Tensor], ...],
        give_back: Callable[[], None],
        buffers: Sequence[Buffer] = (),
    ) -> None:
        self._buffers = list(buffers)
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
            self._buffers = []
            self._give_back()

    def rebind(self, buffer: Buffer | None) -> None:
        """Takes a tensor over a buffer whose memory is another one now; others' are not touched."""
        for i, own in enumerate(self._buffers):
            if own is buffer:
                pair = list(self._layers[i // 2])
                pair[i % 2] = buffer.tensor(tuple(pair[i % 2].shape), pair[i % 2].dtype)
                layers = list(self._layers)
                layers[i // 2] = (pair[0], pair[1])
                self._layers = tuple(layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._require_held()
        self._require_awake(layer)
        return self._layers[layer]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self._require_held()
        for layer in range(len(self._layers)):
            self._require_awake(layer)
        return iter(self._layers)

    def _require_held(self) -> None:
        if self._released:
            raise InvalidBuffer("these KV caches were released", fix="make new ones")

    def _require_awake(self, layer: int) -> None:
        """Refuses tensors without memory: reading one would end the process."""
        awake = all(t.untyped_storage().nbytes() or not t.numel() for t in self._layers[layer])
        own = self._buffers[2 * layer : 2 * layer + 2]
        if not awake or any(b.residency is not Residency.RESIDENT for b in own):
            raise NotResident("these KV caches sleep", fix="dev.memory.wake() first")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
