"""A larger alignment than the upstream's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from trivet.contracts.memory import Allocator, Traits
from trivet.errors import MemoryFault
from trivet.memory.adaptors.adaptor import Adaptor, foreign, traits_of
from trivet.memory.asking import ask
from trivet.memory.sizes import whole


class Aligned(Adaptor):
    """Asks for more and hands out the aligned part of it.

    Where the upstream aligns well enough, nothing is added. Buffers cannot be exported otherwise,
    as whoever opens one would see the larger piece. It is as safe from threads as its upstream.

    Args:
        upstream: the allocator that is asked.
        alignment: a power of two.
    """

    def __init__(self, upstream: Allocator, alignment: int) -> None:
        alignment = whole(alignment, "an alignment of {} bytes")
        if alignment < 1 or alignment & alignment - 1:
            raise MemoryFault(f"an alignment of {alignment}", fix="a power of two")
        below = traits_of(upstream, "Aligned")
        self._extra = max(0, alignment - below.alignment)
        self._alignment = alignment
        self._pieces: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._traits = self._below = below
        if self._extra:
            self._traits = replace(below, alignment=alignment, exportable=frozenset())
        super().__init__(upstream)

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        if not self._extra:
            return self.upstream.allocate(nbytes, tag=tag)
        # an empty tensor has no address that could be odd
        nbytes = whole(nbytes, "a buffer of {} bytes")
        size = nbytes + self._extra if nbytes else 0
        piece = ask(self.upstream, self._below, size, tag)
        first = -piece.data_ptr() % self._alignment
        part = piece[first : first + nbytes]
        self._pieces[id(part)] = piece, part
        return part

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """
        if not self._extra:
            self.upstream.deallocate(buffer)
            return
        known = self._pieces.pop(id(buffer), None)
        if known is None:
            raise foreign(self, buffer)
        try:
            self.upstream.deallocate(known[0])
        except BaseException:
            self._pieces[id(buffer)] = known
            raise

    def _passed(self, name: str, inner: Any) -> Any:
        if name == "preserves" and self._extra and "address" not in inner:
            return inner - {"tensors"}  # the part of a piece that moved would be aligned no more
        if not self._extra or name not in {"suspend", "resume", "export"}:
            return inner

        def on_whole(buffer: torch.Tensor, *args: Any) -> Any:
            known = self._pieces.get(id(buffer))
            if known is None:
                raise foreign(self, buffer)
            if name == "export":
                msg = "an aligned part of a buffer cannot be exported"
                raise MemoryFault(msg, fix="allocate from the allocator under the alignment")
            return inner(known[0], *args)

        on_whole.__name__ = name
        return on_whole
