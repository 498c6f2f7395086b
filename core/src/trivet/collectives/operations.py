"""The operations of a group that wait for their result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trivet.collectives.start import Start
from trivet.collectives.symmetric import SymmetricTensor
from trivet.contracts.collectives import Message


class Operations:
    """``f(x)`` returns a new tensor, ``f_(x)`` writes ``x``.

    Args:
        start: the same operations, started.
    """

    def __init__(self, start: Start) -> None:
        self.start = start

    def all_reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The reduction of every rank's ``x``: same shape and dtype, never an alias of ``x``.

        Args:
            x: same shape and dtype on every rank.
            op: one of ``REDUCTIONS``, or ``avg`` (the sum divided; integers towards zero).

        Raises:
            CommArgumentError: this holds for all operations: an argument cannot be right.
            CommUnsupported: nobody makes it.
            CommError: a rank failed, ended or did not come in time.
            GradUnsupported: ``x`` requires a gradient and gradients are enabled.
        """
        return self.start.all_reduce(x, op).result()

    def all_reduce_(self, x: torch.Tensor | SymmetricTensor, op: str = "sum") -> None:
        """As ``all_reduce``, written into ``x``; after an error its content is undefined.

        A ``SymmetricTensor`` is reduced where it lies, where somebody can.
        """
        self.start.all_reduce_(x, op).wait()

    def reduce(self, x: torch.Tensor, root: int = 0, op: str = "sum") -> torch.Tensor:
        """As ``all_reduce`` on rank ``root``; an empty tensor elsewhere."""
        return self.start.reduce(x, root, op).result()

    def reduce_scatter(
        self, x: torch.Tensor, op: str = "sum", sizes: Sequence[int] | None = None
    ) -> torch.Tensor:
        """This rank's rows of the reduction of every rank's ``[rows, ...]``.

        Args:
            x: ``[size * n, ...]``, or as many rows as ``sizes`` add up to.
            op: as for ``all_reduce``.
            sizes: rows that each rank gets, the same on every rank; equal shares when None.
        """
        return self.start.reduce_scatter(x, op, sizes).result()

    def all_gather(self, x: torch.Tensor, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Every rank's ``[n, ...]`` joined to ``[size * n, ...]``; scalars to ``[size]``.

        Args:
            x: rows of this rank.
            sizes: rows of each rank, where they differ, the same on every rank.
        """
        return self.start.all_gather(x, sizes).result()

    def broadcast(self, x: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Rank ``root``'s ``x``, as a new tensor on every rank, that one included."""
        return self.start.broadcast(x, root).result()

    def broadcast_(self, x: torch.Tensor, root: int = 0) -> None:
        """As ``broadcast``, written into ``x``."""
        self.start.broadcast_(x, root).wait()

    def gather(self, x: torch.Tensor, root: int = 0) -> torch.Tensor:
        """As ``all_gather`` on rank ``root``; an empty tensor elsewhere."""
        return self.start.gather(x, root).result()

    def scatter(self, x: torch.Tensor, root: int = 0) -> torch.Tensor:
        """This rank's rows of rank ``root``'s ``x``; the others' ``x`` say shape and dtype."""
        return self.start.scatter(x, root).result()

    def all_to_all(
        self,
        x: torch.Tensor,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Pieces of dimension 0 to every rank, pieces from every rank joined in order of rank.

        Args:
            x: ``[rows, ...]``.
            out_splits: rows that come from each rank; as ``in_splits`` when None.
            in_splits: rows that go to each rank; equal shares when None. Splits are given on
                every rank, or on none.
        """
        return self.start.all_to_all(x, out_splits, in_splits).result()

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``s = all_reduce(x) + residual``; returns ``(rms_norm(s, weight, eps), s)``."""
        work, total = self.start.all_reduce_add_rms_norm(x, residual, weight, eps)
        return work.result(), total

    def send(self, x: torch.Tensor, to: int) -> None:
        """Send ``x`` to rank ``to``; it may return before the message was received."""
        self.start.send(x, to).wait()

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """What rank ``source`` sends, as a new tensor of the shape and dtype of ``x``."""
        return self.start.recv(x, source).result()

    def recv_(self, x: torch.Tensor, source: int) -> None:
        """As ``recv``, written into ``x``."""
        self.start.recv_(x, source).wait()

    def batch(self, messages: Sequence[Message]) -> None:
        """Messages that do not wait for one another, until all are done."""
        self.start.batch(messages).wait()

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.start.barrier().wait()
