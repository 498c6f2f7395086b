"""What every pool does: takes pieces from its upstream, counts them, gives them back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch

from trivet.contracts.memory import Allocator, Stats, Traits
from trivet.memory.adaptors.adaptor import traits_of
from trivet.memory.asking import ask, give_back
from trivet.memory.sizes import whole
from trivet.plugins.describe import said


class Pool(ABC):
    """An allocator over pieces of another one.

    Its buffers are parts of larger ones, so that they are neither zeroed nor exportable one by
    one, whatever the upstream's are.

    Args:
        upstream: where pieces come from; its alignment is the pool's.
        tag: what the upstream is told that the pieces are for.

    Raises:
        MemoryFault: the upstream is no allocator.
    """

    def __init__(self, upstream: Allocator, *, tag: str = "pool") -> None:
        own = traits_of(upstream, type(self).__name__)
        self.upstream = upstream
        self._tag = tag
        self._traits = replace(own, zeroed=False, exportable=frozenset())
        self._alignment = self._traits.alignment
        self._used = self._peak_used = self._reserved = self._peak_reserved = 0

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    @abstractmethod
    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""

    @abstractmethod
    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back.

        Raises:
            InvalidBuffer: it is none of the live ones.
        """

    @abstractmethod
    def trim(self, nbytes: int) -> int:
        """Gives back at least so much if it can; how much it was. 0 asks for all of it."""

    def stats(self) -> Stats:
        """Bytes in live buffers with their rounding, and bytes held from the upstream."""
        return Stats(self._used, self._reserved, self._peak_used, self._peak_reserved)

    def _rounded(self, nbytes: int) -> int:
        """A size that keeps the next buffer aligned.

        Raises:
            MemoryFault: it is no number of 0 or more.
        """
        if type(nbytes) is not int or nbytes < 0:
            nbytes = whole(nbytes, "a buffer of {} bytes")
        return -(-nbytes // self._alignment) * self._alignment

    def _reserve(self, nbytes: int) -> torch.Tensor:
        """A piece of the upstream; where it is full, what is kept goes back first."""
        try:
            piece = ask(self.upstream, self._traits, nbytes, self._tag)
        except torch.OutOfMemoryError as error:
            if not self._trimmed(error):
                raise
            piece = ask(self.upstream, self._traits, nbytes, self._tag)
        self._reserved += nbytes
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return piece

    def _return(self, piece: torch.Tensor, nbytes: int) -> None:
        """Gives a piece back."""
        give_back(self.upstream, piece)
        self._reserved -= nbytes

    def _trimmed(self, error: BaseException) -> bool:
        """Whether anything went back; what keeps it from that is told with the error."""
        try:
            return self.trim(0) > 0
        except Exception as second:  # noqa: BLE001  # of the upstream; told with the first
            error.add_note(f"nothing that is kept went back: {said(second)}")
            return False

    def _take(self, nbytes: int) -> None:
        """Counts bytes in live buffers."""
        self._used += nbytes
        self._peak_used = max(self._peak_used, self._used)
