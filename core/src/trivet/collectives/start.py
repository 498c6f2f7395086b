"""The operations of a group, started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from trivet.collectives.agreement import Agreement, Record
from trivet.collectives.operands import (
    as_bytes,
    divide,
    flat,
    fresh,
    reduced_as,
    require_splits,
    require_tensor,
    rows_by_rank,
    writable,
)
from trivet.collectives.stock import StockCollective
from trivet.collectives.work import Health, Meeting, Started, reported
from trivet.contracts.collectives import (
    Collective,
    CollectiveRefusal,
    GroupInfo,
    Work,
)
from trivet.errors import CommError


@dataclass
class Members:
    """Everything that a group is made of.

    Args:
        info: its name, ranks and device.
        stock: torch's operations.
        stock_name: how explanations call them.
        vendor: what the plugin opened for this group, or None.
        vendor_name: how explanations call it.
        agreement: how its members talk beside the data.
        health: whether it can still be used.
        check: compare every call across ranks before it is made.
        dissolve: gives torch's group back.
    """

    info: GroupInfo
    stock: StockCollective
    stock_name: str
    vendor: object
    vendor_name: str
    agreement: Agreement
    health: Health
    check: bool
    dissolve: Callable[[], None]
    messages: list[Meeting] = field(default_factory=list)

    def provider(
        self, operation: str, dtype: torch.dtype, numel: int, reduction: str
    ) -> tuple[Collective, str]:
        """Who makes a call, and its name."""
        if not hasattr(self.vendor, operation):
            return self.stock, self.stock_name
        if isinstance(self.vendor, CollectiveRefusal):
            with reported(operation, self.vendor_name):
                if self.vendor.refuses(operation, dtype, numel, reduction):
                    return self.stock, self.stock_name
        return cast("Collective", self.vendor), self.vendor_name


class Start:
    """The operations of a group, started: each returns ``Work``. See ``DeviceGroup``.

    In check mode a call returns only when every member has made it; sends and receives do not
    wait.
    """

    def __init__(self, members: Members) -> None:
        self._m = members
        self._size = members.info.size

    def all_reduce(self, x: torch.Tensor, op: str = "sum") -> Work:
        """A new tensor: the reduction of every rank's ``x``."""
        self._admit(x, "all_reduce")
        out = torch.empty_like(flat(x))
        return self._all_reduce(x, out, flat(x), op, out.view(x.shape), None)

    def all_reduce_(self, x: torch.Tensor, op: str = "sum") -> Work:
        """As ``all_reduce``, written into ``x``."""
        self._admit(x, "all_reduce")
        target, copy_back = writable(x, "all_reduce_")
        return self._all_reduce(x, target, target, op, x, copy_back)

    def reduce_scatter(self, x: torch.Tensor, op: str = "sum") -> Work:
        """A new tensor: this rank's rows of the reduction of every rank's ``x``."""
        self._admit(x, "reduce_scatter")
        rows = rows_by_rank(x, self._size, "reduce_scatter")
        inp = flat(x)
        out = inp.new_empty(inp.numel() // self._size)
        dst, src = reduced_as(out, op, "reduce_scatter"), reduced_as(inp, op, "reduce_scatter")
        self._check(_record("reduce_scatter", x, reduction=op))
        return self._begin(
            "reduce_scatter",
            src,
            lambda c: c.reduce_scatter(dst, src, _sent(op)),
            op,
            out=out.view(rows, *x.shape[1:]),
            finish=(lambda: divide(out, self._size)) if op == "avg" else None,
        )

    def all_gather(self, x: torch.Tensor) -> Work:
        """A new tensor: every rank's ``x``, joined along dimension 0."""
        self._admit(x, "all_gather")
        self._check(_record("all_gather", x))
        inp = flat(x)
        out = inp.new_empty(inp.numel() * self._size)
        dst, src = as_bytes(out), as_bytes(inp)
        rows = x.shape[0] if x.dim() else 1
        shape = (rows * self._size, *x.shape[1:])
        return self._begin("all_gather", src, lambda c: c.all_gather(dst, src), out=out.view(shape))

    def broadcast(self, x: torch.Tensor, source: int = 0) -> Work:
        """A new tensor: rank ``source``'s ``x``."""
        self._admit(x, "broadcast")
        out = fresh(x)
        return self._broadcast(x, out, source, out.view(x.shape), None)

    def broadcast_(self, x: torch.Tensor, source: int = 0) -> Work:
        """As ``broadcast``, written into ``x``."""
        self._admit(x, "broadcast")
        target, copy_back = writable(x, "broadcast_")
        return self._broadcast(x, target, source, x, copy_back)

    def all_to_all(
        self,
        x: torch.Tensor,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
    ) -> Work:
        """A new tensor: piece ``rank`` of every rank's ``x``, in order of rank."""
        what = "all_to_all"
        self._admit(x, what)
        if in_splits is None:
            in_splits = [rows_by_rank(x, self._size, what)] * self._size
        out_splits = in_splits if out_splits is None else out_splits
        if x.dim() == 0:
            raise CommError(f"{what}: a scalar has no rows to share out")
        require_splits(in_splits, self._size, what, x.shape[0])
        require_splits(out_splits, self._size, what)
        self._check_pieces(x, out_splits, in_splits)
        row = x.shape[1:].numel()
        out = x.new_empty(sum(out_splits) * row)
        dst, src, step = as_bytes(out), as_bytes(flat(x)), row * x.element_size()
        into, outof = [n * step for n in out_splits], [n * step for n in in_splits]
        return self._begin(
            what,
            src,
            lambda c: c.all_to_all(dst, src, into, outof),
            out=out.view(sum(out_splits), *x.shape[1:]),
        )

    def send(self, x: torch.Tensor, to: int) -> Work:
        """Send ``x`` to rank ``to``."""
        self._admit(x, "send")
        self._peer(to, "send")
        src = as_bytes(flat(x))
        return self._message(x, src, self._m.info.rank, to, lambda c: c.send(src, to), x, None)

    def recv(self, x: torch.Tensor, source: int) -> Work:
        """A new tensor like ``x``: what rank ``source`` sends."""
        self._admit(x, "recv")
        out = torch.empty_like(flat(x))
        return self._recv(x, out, source, out.view(x.shape), None)

    def recv_(self, x: torch.Tensor, source: int) -> Work:
        """As ``recv``, written into ``x``."""
        self._admit(x, "recv")
        target, copy_back = writable(x, "recv_")
        return self._recv(x, target, source, x, copy_back)

    def barrier(self) -> Work:
        """Ends when every rank has started it."""
        self._m.health.require()
        self._check({"operation": "barrier"})
        nothing = torch.empty(0, dtype=torch.uint8)
        return self._begin("barrier", nothing, lambda c: c.barrier())

    # --- shared steps ------------------------------------------------------------------------

    def _all_reduce(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        inp: torch.Tensor,
        op: str,
        result: torch.Tensor,
        copy_back: Callable[[], object] | None,
    ) -> Work:
        dst = reduced_as(out, op, "all_reduce")
        src = dst if inp is out else reduced_as(inp, op, "all_reduce")
        self._check(_record("all_reduce", x, reduction=op))

        def finish() -> None:
            if op == "avg":
                divide(out, self._size)
            if copy_back is not None:
                copy_back()

        return self._begin(
            "all_reduce",
            src,
            lambda c: c.all_reduce(dst, src, _sent(op)),
            op,
            out=result,
            finish=finish,
        )

    def _broadcast(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        source: int,
        result: torch.Tensor,
        copy_back: Callable[[], object] | None,
    ) -> Work:
        self._rank_exists(source, "broadcast")
        self._check(_record("broadcast", x, source=source))
        dst = as_bytes(target)
        return self._begin(
            "broadcast", dst, lambda c: c.broadcast(dst, source), out=result, finish=copy_back
        )

    def _recv(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        source: int,
        result: torch.Tensor,
        copy_back: Callable[[], object] | None,
    ) -> Work:
        self._peer(source, "recv")
        dst = as_bytes(target)
        me = self._m.info.rank
        return self._message(x, dst, source, me, lambda c: c.recv(dst, source), result, copy_back)

    def _message(
        self,
        x: torch.Tensor,
        moved: torch.Tensor,
        source: int,
        to: int,
        run: Callable[[Collective], Work],
        result: torch.Tensor,
        finish: Callable[[], object] | None,
    ) -> Work:
        what = "send" if source == self._m.info.rank else "recv"
        if not self._m.check:
            return self._begin(what, moved, run, out=result, finish=finish)
        agreement = self._m.agreement
        arrived, verify = agreement.meet(source, to, _record("message", x))
        meeting = Meeting(
            self._m.messages,
            (source, to),
            arrived,
            verify,
            lambda: self._begin(what, moved, run),
            agreement.timeout.total_seconds(),
        )
        return Started(
            self._says(what), "check", self._m.health, meeting, out=result, finish=finish
        )

    def _begin(
        self,
        operation: str,
        inp: torch.Tensor,
        run: Callable[[Collective], Work],
        reduction: str = "",
        *,
        out: torch.Tensor | None = None,
        finish: Callable[[], object] | None = None,
    ) -> Work:
        collective, name = self._m.provider(operation, inp.dtype, inp.numel(), _sent(reduction))
        with reported(self._says(operation), name):
            handle = run(collective)
        return Started(self._says(operation), name, self._m.health, handle, out=out, finish=finish)

    def _says(self, operation: str) -> str:
        info = self._m.info
        return f"{operation} of {self._m.health.where} on rank {info.rank} of {info.size}"

    def _admit(self, x: torch.Tensor, what: str) -> None:
        self._m.health.require()
        require_tensor(x, self._m.info.device, what)

    def _rank_exists(self, rank: int, what: str) -> None:
        if not 0 <= rank < self._size:
            raise CommError(
                f"{what}: {self._m.health.where} has ranks 0 to {self._size - 1}, not {rank}"
            )

    def _peer(self, rank: int, what: str) -> None:
        self._rank_exists(rank, what)
        if rank == self._m.info.rank:
            raise CommError(f"{what}: rank {rank} cannot exchange messages with itself")

    def _check(self, record: Record) -> None:
        if self._m.check:
            self._m.agreement.agree(record)

    def _check_pieces(
        self, x: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> None:
        if not self._m.check:
            return
        row = _record("all_to_all", x) | {"shape": ["rows", *x.shape[1:]]}
        told = row | {"to": list(in_splits), "from": list(out_splits)}
        records = self._m.agreement.exchange(told)
        hidden = {"to", "from"}
        self._m.agreement.compare(
            [{k: v for k, v in record.items() if k not in hidden} for record in records]
        )
        sent = [cast("list[int]", record["to"]) for record in records]
        wanted = [cast("list[int]", record["from"]) for record in records]
        for a in range(self._size):
            for b in range(self._size):
                if sent[a][b] != wanted[b][a]:
                    raise CommError(
                        f"{self._m.health.where}: ranks disagree: rank {a} sends {sent[a][b]} "
                        f"rows to rank {b}, which expects {wanted[b][a]}",
                        fix="nothing was communicated; exchange the splits first",
                    )


def _record(operation: str, x: torch.Tensor, **more: object) -> dict[str, object]:
    """What ranks compare of a call."""
    return {"operation": operation, "dtype": str(x.dtype), "shape": list(x.shape)} | more


def _sent(reduction: str) -> str:
    """The reduction that a provider makes for the one that was asked for."""
    return "sum" if reduction == "avg" else reduction
