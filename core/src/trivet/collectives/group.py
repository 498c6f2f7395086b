"""A group of ranks, as an engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from trivet.collectives.start import Members, Start
from trivet.collectives.work import reported
from trivet.contracts.collectives import OPERATIONS, Closable, CollectiveRefusal

_COMPOSED: Final = """
  avg             composed: sum, then division by the size; integers are rounded towards zero
                  (gloo has no average of integers)
  bool            max and min are made on bytes; sum and avg are refused
  movement        all_gather, broadcast, all_to_all, send and recv move bytes, so every dtype"""


class DeviceGroup:
    """A group of ranks: ``f(x)`` returns a new tensor, ``f_(x)`` writes ``x``.

    Ranks in arguments are positions in the group. Every member makes the same calls in the same
    order, from one thread. ``start.f(x)`` returns ``Work`` instead of waiting.

    Without check mode, arguments that differ between ranks have no defined result, and some
    backends give a wrong one without an error; ``check=True`` or ``TRIVET_CHECK=1`` compares
    operation, dtype and shape first and raises ``CommError`` on every rank.
    """

    def __init__(self, members: Members) -> None:
        self._m = members
        self.start = Start(members)

    @property
    def name(self) -> str:
        """The name that it was opened under."""
        return self._m.info.name

    @property
    def rank(self) -> int:
        """Position of this process in the group."""
        return self._m.info.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self._m.info.size

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' ranks in the world, ascending."""
        return self._m.info.ranks

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return self._m.info.device

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._m.health.closed

    def all_reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The reduction of every rank's ``x``: same shape and dtype, never an alias of ``x``.

        Args:
            x: same shape and dtype on every rank.
            op: ``sum``, ``max``, ``min`` or ``avg`` (the sum divided; integers towards zero).

        Raises:
            CommError: this holds for all operations: a rank failed, ended or did not come in
                time, or an argument cannot be right.
            GradUnsupported: ``x`` requires a gradient and gradients are enabled.
        """
        return self.start.all_reduce(x, op).result()

    def all_reduce_(self, x: torch.Tensor, op: str = "sum") -> None:
        """As ``all_reduce``, written into ``x``; after an error its content is undefined."""
        self.start.all_reduce_(x, op).wait()

    def reduce_scatter(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Rows ``[n, ...]`` of this rank of the reduction of every rank's ``[size * n, ...]``."""
        return self.start.reduce_scatter(x, op).result()

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's ``[n, ...]`` joined to ``[size * n, ...]``; scalars to ``[size]``."""
        return self.start.all_gather(x).result()

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Rank ``source``'s ``x``, as a new tensor on every rank, that one included."""
        return self.start.broadcast(x, source).result()

    def broadcast_(self, x: torch.Tensor, source: int = 0) -> None:
        """As ``broadcast``, written into ``x``."""
        self.start.broadcast_(x, source).wait()

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
            in_splits: rows that go to each rank; equal shares when None.
        """
        return self.start.all_to_all(x, out_splits, in_splits).result()

    def send(self, x: torch.Tensor, to: int) -> None:
        """Send ``x`` to rank ``to``; it may return before the message was received."""
        self.start.send(x, to).wait()

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """What rank ``source`` sends, as a new tensor of the shape and dtype of ``x``."""
        return self.start.recv(x, source).result()

    def recv_(self, x: torch.Tensor, source: int) -> None:
        """As ``recv``, written into ``x``."""
        self.start.recv_(x, source).wait()

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.start.barrier().wait()

    def providers(self) -> Mapping[str, str]:
        """Who makes each operation, before any call is refused by its arguments."""
        vendor = self._m.vendor
        return {
            operation: self._m.vendor_name if hasattr(vendor, operation) else self._m.stock_name
            for operation in OPERATIONS
        }

    def explain(self) -> str:
        """Who does what here, and what is composed."""
        m, info = self._m, self._m.info
        ranks = " ".join(map(str, info.ranks))
        text = f"{m.health.where}: rank {info.rank} of {info.size} (world ranks {ranks}), "
        text += f"device {info.device}, check {'on' if m.check else 'off'}"
        for operation, name in self.providers().items():
            text += f"\n  {operation:15} {name}"
        text += _COMPOSED
        if isinstance(m.vendor, CollectiveRefusal):
            text += f"\n  {m.vendor_name} may leave a call to {m.stock_name}, by its arguments"
        return text

    def close(self) -> None:
        """Give the group back; a second call does nothing. It may be called after a failure.

        torch's own world group stays as it was: who initialised it destroys it.
        """
        if self._m.health.closed:
            return
        self._m.health.closed = True
        try:
            if isinstance(self._m.vendor, Closable):
                with reported(f"close of {self._m.health.where}", self._m.vendor_name):
                    self._m.vendor.close()
        finally:
            self._m.dissolve()
