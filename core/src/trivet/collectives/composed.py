"""Operations made of others, for what neither a vendor nor the backend brings.

Each is a candidate like any other, after those, and can be named in order lists as
``composed/NAME``. An operation is composed only of those further down: reductions of movement,
movement of messages.

Sums are made in order of rank, accumulated in float32 where the dtype is narrower. One
communication is started and what follows it happens in ``wait``; where several follow one another,
the call waits in between, so that all ranks make them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from trivet.collectives.arithmetic import reduce_in_order
from trivet.contracts.collectives import Group, Message, Work, provides
from trivet.contracts.terms import between

SMALL: Final = 64 * 1024
"""Bytes up to which every rank gets everything and reduces it by itself."""

COSTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "all_gather_sum": "one all_gather of n bytes, n * ranks bytes of scratch",
        "two_shot": "an all_to_all and an all_gather of n / ranks bytes, one after the other",
        "all_to_all_sum": "one all_to_all of n bytes, n bytes of scratch",
        "gather_sum": "one gather of n bytes, n * ranks bytes of scratch on the root",
        "all_reduce": "an all_reduce; ranks that are no root throw it away",
        "messages": "ranks - 1 messages each way",
        "all_to_all_v": "an all_to_all_v of equal pieces",
        "all_gather": "an all_gather of one byte",
        "hierarchical": "the operation on each machine, then one of n bytes between leaders",
        "unfused": "an all_reduce, then the operator in plain torch",
    }
)
"""What a composition costs on each rank, for n bytes."""


Parts = Callable[..., Work | None]
"""Starts an operation that was chosen for this group: ``(operation, x, reduction, *arguments)``.

The dtype and bytes of ``x`` decide who makes it.
"""


class Then(Work):
    """A communication and what follows it on this rank."""

    def __init__(self, work: Work | None, follow: Callable[[], object]) -> None:
        self._work = work
        self._follow: Callable[[], object] | None = follow

    def wait(self, timeout: float | None = None) -> None:
        """Wait, then do it once."""
        if self._work is not None:
            self._work.wait(timeout)
        if self._follow is not None:
            self._follow()
            self._follow = None

    def is_completed(self) -> bool:
        """True when the communication is."""
        return self._work is None or self._work.is_completed()


class Composed:
    """Every composition, for one group.

    Args:
        group: the group.
        parts: starts what they are made of.
    """

    def __init__(self, group: Group, parts: Parts) -> None:
        self._group = group
        self._parts = parts

    def _do(self, operation: str, x: Tensor, *args: Any) -> None:
        work = self._parts(operation, x, "", *args)
        if work is not None:
            work.wait()

    # --- reductions --------------------------------------------------------------------------

    @provides("all_reduce", determinism=["order"], domain=[between("nbytes", 0, SMALL)],
              name="all_gather_sum")  # fmt: skip
    def all_gather_sum(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """Everybody gets everything and reduces it."""
        every = inp.new_empty(self._group.size * inp.numel())
        work = self._parts("all_gather", as_bytes(inp), "", as_bytes(every), as_bytes(inp))
        pieces = every.view(self._group.size, -1)
        return Then(work, lambda: reduce_in_order(pieces, out, reduction))

    @provides("all_reduce", determinism=["order"], name="two_shot")
    def two_shot(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """Each rank reduces its share, then everybody gets all shares."""
        size = self._group.size
        share = -(-inp.numel() // size)
        padded = inp if share * size == inp.numel() else inp.new_zeros(share * size)
        if padded is not inp:
            padded[: inp.numel()].copy_(inp)
        part, whole = inp.new_empty(share), out
        self.all_to_all_sum(part, padded, reduction).wait()
        if padded is not inp:
            whole = inp.new_empty(share * size)
        self._do("all_gather", as_bytes(part), as_bytes(whole), as_bytes(part))
        if whole is not out:
            out.copy_(whole[: out.numel()])

    @provides("reduce_scatter", determinism=["order"], name="all_to_all_sum")
    def all_to_all_sum(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """Each rank gets its share of everybody's input and reduces it."""
        every = torch.empty_like(inp)
        work = self._parts("all_to_all", as_bytes(inp), "", as_bytes(every), as_bytes(inp))
        pieces = every.view(self._group.size, -1)
        return Then(work, lambda: reduce_in_order(pieces, out, reduction))

    @provides("reduce", determinism=["order"], domain=[between("nbytes", 0, SMALL)],
              name="gather_sum")  # fmt: skip
    def gather_sum(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> Work:
        """The root gets everything and reduces it."""
        mine = self._group.rank == root
        every = inp.new_empty(self._group.size * inp.numel() if mine else 0)
        work = self._parts("gather", as_bytes(inp), "", as_bytes(every), as_bytes(inp), root)
        pieces = every.view(self._group.size, -1) if mine else every

        def follow() -> None:
            if mine:
                reduce_in_order(pieces, out, reduction)

        return Then(work, follow)

    @provides("reduce", name="all_reduce")
    def reduce(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> Work | None:
        """An all_reduce of which the others throw the result away."""
        target = out if self._group.rank == root else torch.empty_like(inp)
        return self._parts("all_reduce", inp, reduction, target, inp, reduction)

    # --- movement ----------------------------------------------------------------------------

    @provides("all_gather", name="messages")
    def all_gather(self, out: Tensor, inp: Tensor) -> Work | None:
        """Send everything to everybody."""
        pieces = self._pieces(out, inp.numel())
        pieces[self._group.rank].copy_(inp)
        others = self._others()
        return self._send([*(Message(True, r, inp) for r in others),
                           *(Message(False, r, pieces[r]) for r in others)])  # fmt: skip

    @provides("broadcast", name="messages")
    def broadcast(self, x: Tensor, root: int) -> Work | None:
        """The root sends to everybody."""
        if self._group.rank != root:
            return self._send([Message(False, root, x)])
        return self._send([Message(True, r, x) for r in self._others()])

    @provides("gather", name="messages")
    def gather(self, out: Tensor, inp: Tensor, root: int) -> Work | None:
        """Everybody sends to the root."""
        if self._group.rank != root:
            return self._send([Message(True, root, inp)])
        pieces = self._pieces(out, inp.numel())
        pieces[root].copy_(inp)
        return self._send([Message(False, r, pieces[r]) for r in self._others()])

    @provides("scatter", name="messages")
    def scatter(self, out: Tensor, inp: Tensor, root: int) -> Work | None:
        """The root sends each its piece."""
        if self._group.rank != root:
            return self._send([Message(False, root, out)])
        pieces = self._pieces(inp, out.numel())
        out.copy_(pieces[root])
        return self._send([Message(True, r, pieces[r]) for r in self._others()])

    @provides("all_to_all", name="all_to_all_v")
    def all_to_all(self, out: Tensor, inp: Tensor) -> Work | None:
        """An exchange of equal pieces."""
        splits = [inp.numel() // self._group.size] * self._group.size
        return self._parts("all_to_all_v", inp, "", out, inp, splits, splits)

    @provides("all_to_all_v", name="messages")
    def all_to_all_v(
        self, out: Tensor, inp: Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Work | None:
        """Send each its piece."""
        rank, others = self._group.rank, self._others()
        to, of = torch.split(inp, list(in_splits)), torch.split(out, list(out_splits))
        of[rank].copy_(to[rank])
        sent = [Message(True, r, to[r]) for r in others]
        return self._send([*sent, *(Message(False, r, of[r]) for r in others)])

    @provides("barrier", name="all_gather")
    def barrier(self) -> Work | None:
        """A byte from everybody to everybody."""
        inp = torch.zeros(1, dtype=torch.uint8, device=self._group.device)
        return self._parts("all_gather", inp, "", inp.new_empty(self._group.size), inp)

    # --- fused -------------------------------------------------------------------------------

    @provides("all_reduce_add_rms_norm", name="unfused")
    def all_reduce_add_rms_norm(
        self, out: Tensor, residual: Tensor, inp: Tensor, weight: Tensor, eps: float
    ) -> None:
        """The reduction, then the formula of the operator's reference."""
        from trivet.catalogue import operators  # few groups need it

        total = torch.empty_like(inp)
        flat, given = total.view(-1), inp.view(-1)
        work = self._parts("all_reduce", given, "sum", flat, given, "sum")
        if work is not None:
            work.wait()
        reference = operators()["fused_add_rms_norm"].reference
        normed, added = reference(total, residual, weight, eps)
        out.copy_(normed)
        residual.copy_(added)

    def _others(self) -> list[int]:
        """The other ranks, each rank in another order, so that not all write to one at once."""
        rank, size = self._group.rank, self._group.size
        return [(rank + step) % size for step in range(1, size)]

    def _pieces(self, whole: Tensor, n: int) -> list[Tensor]:
        return [whole[r * n : (r + 1) * n] for r in range(self._group.size)]

    def _send(self, messages: Sequence[Message]) -> Work | None:
        messages = [m for m in messages if m.x.numel()]
        if not messages:
            return None
        return self._parts("batch", messages[0].x, "", messages)


def as_bytes(x: Tensor) -> Tensor:
    """The bytes of a flat tensor, as a view."""
    return x.view(torch.uint8)
