"""The operations of a group, started: what their arguments mean, and how they reach a provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from trivet.collectives.agreement import Record
from trivet.collectives.arithmetic import divide
from trivet.collectives.launch import Launcher
from trivet.collectives.messages import Messages
from trivet.collectives.operands import (
    AVG,
    as_bytes,
    flat,
    fresh,
    reduced,
    require_reduction,
    require_splits,
    rows_by_rank,
    writable,
)
from trivet.collectives.symmetric import SymmetricTensor
from trivet.collectives.work import Started
from trivet.errors import CommArgumentError, GroupMismatch


class Start(Messages):
    """The operations of a group, started: each returns at once. See ``DeviceGroup``.

    In check mode a call returns only when every member has made it; sends and receives do not
    wait.
    """

    def __init__(self, launcher: Launcher) -> None:
        super().__init__(launcher)
        self._size = launcher.group.size

    # --- reductions --------------------------------------------------------------------------

    def all_reduce(self, x: torch.Tensor, op: str = "sum") -> Started:
        """A new tensor: the reduction of every rank's ``x``."""
        self._admit(x, "all_reduce")
        inp = flat(x)
        out = torch.empty_like(inp)
        return self._all_reduce(x, out, inp, op, out.view(x.shape), None)

    def all_reduce_(self, x: torch.Tensor | SymmetricTensor, op: str = "sum") -> Started:
        """As ``all_reduce``, written into ``x``."""
        symmetric = isinstance(x, SymmetricTensor)
        x = cast("SymmetricTensor", x).tensor if symmetric else cast("torch.Tensor", x)
        self._admit(x, "all_reduce")
        target, copy_back = writable(x, "all_reduce_")
        return self._all_reduce(x, target, target, op, x, copy_back, symmetric=symmetric)

    def reduce(self, x: torch.Tensor, root: int, op: str = "sum") -> Started:
        """A new tensor on rank ``root``, an empty one elsewhere."""
        what = "reduce"
        self._admit(x, what)
        self._rank_exists(root, what)
        require_reduction(x, op, what)
        inp = flat(x)
        out = torch.empty_like(inp) if self._rank == root else inp.new_empty(0)
        shape = x.shape if self._rank == root else out.shape
        self._check(_record(what, x, reduction=op, root=root))
        src, dst = reduced(inp), reduced(out)
        return self._m.launch(
            what, src, _sent(op), (dst, src, _sent(op), root), peer=root, out=out.view(shape),
            finish=self._average(out, op),
        )  # fmt: skip

    def reduce_scatter(
        self, x: torch.Tensor, op: str = "sum", sizes: Sequence[int] | None = None
    ) -> Started:
        """A new tensor: this rank's rows of the reduction of every rank's ``x``."""
        what = "reduce_scatter"
        self._admit(x, what)
        require_reduction(x, op, what)
        self._check(_record(what, x, reduction=op, sizes=list(sizes or ())))
        rows = 0 if sizes else rows_by_rank(x, self._size, what)
        inp = flat(x)
        mine = rows
        if sizes:
            inp, rows = self._padded(x, sizes, what), max(sizes)
            mine = sizes[self._rank]
        out = inp.new_empty(inp.numel() // self._size)
        dst, src = reduced(out), reduced(inp)
        return self._m.launch(
            what, src, _sent(op), (dst, src, _sent(op)), out=out.view(rows, *x.shape[1:])[:mine],
            finish=self._average(out, op),
        )  # fmt: skip

    # --- movement ----------------------------------------------------------------------------

    def all_gather(self, x: torch.Tensor, sizes: Sequence[int] | None = None) -> Started:
        """A new tensor: every rank's ``x``, joined along dimension 0."""
        what = "all_gather"
        self._admit(x, what)
        if sizes:
            return self._all_gather_uneven(x, sizes)
        self._check(_record(what, x))
        inp = flat(x)
        out = inp.new_empty(inp.numel() * self._size)
        dst, src = as_bytes(out), as_bytes(inp)
        return self._m.launch(what, src, "", (dst, src), out=out.view(self._joined(x)))

    def broadcast(self, x: torch.Tensor, root: int = 0) -> Started:
        """A new tensor: rank ``root``'s ``x``."""
        self._admit(x, "broadcast")
        out = fresh(x)
        return self._broadcast(x, out, root, out.view(x.shape), None)

    def broadcast_(self, x: torch.Tensor, root: int = 0) -> Started:
        """As ``broadcast``, written into ``x``."""
        self._admit(x, "broadcast")
        target, copy_back = writable(x, "broadcast_")
        return self._broadcast(x, target, root, x, copy_back)

    def gather(self, x: torch.Tensor, root: int = 0) -> Started:
        """A new tensor on rank ``root``: every rank's ``x`` joined; an empty one elsewhere."""
        what = "gather"
        self._admit(x, what)
        self._rank_exists(root, what)
        self._check(_record(what, x, root=root))
        inp = flat(x)
        mine = self._rank == root
        out = inp.new_empty(inp.numel() * self._size if mine else 0)
        dst, src = as_bytes(out), as_bytes(inp)
        shape = self._joined(x) if mine else (0, *x.shape[1:])
        return self._m.launch(what, src, "", (dst, src, root), peer=root, out=out.view(shape))

    def scatter(self, x: torch.Tensor, root: int = 0) -> Started:
        """A new tensor: this rank's rows of rank ``root``'s ``x``.

        ``x`` has its shape and dtype on every rank; only that of the root is read.
        """
        what = "scatter"
        self._admit(x, what)
        self._rank_exists(root, what)
        rows = rows_by_rank(x, self._size, what)
        self._check(_record(what, x, root=root))
        inp = flat(x)
        out = inp.new_empty(inp.numel() // self._size)
        src = inp if self._rank == root else inp.new_empty(0)
        dst, src = as_bytes(out), as_bytes(src)
        view = out.view(rows, *x.shape[1:])
        return self._m.launch(what, dst, "", (dst, src, root), peer=root, out=view)

    def all_to_all(
        self,
        x: torch.Tensor,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
    ) -> Started:
        """A new tensor: piece ``rank`` of every rank's ``x``, in order of rank."""
        what = "all_to_all"
        self._admit(x, what)
        if x.dim() == 0:
            raise CommArgumentError(f"{what}: a scalar has no rows to share out")
        if in_splits is None and out_splits is None:
            rows_by_rank(x, self._size, what)
            self._check(_record(what, x))
            inp = flat(x)
            out = torch.empty_like(inp)
            dst, src = as_bytes(out), as_bytes(inp)
            return self._m.launch(what, src, "", (dst, src), out=out.view(x.shape))
        if in_splits is None:
            in_splits = [rows_by_rank(x, self._size, what)] * self._size
        out_splits = in_splits if out_splits is None else out_splits
        require_splits(in_splits, self._size, what, x.shape[0])
        require_splits(out_splits, self._size, what)
        self._check_pieces(x, out_splits, in_splits)
        row = x.shape[1:].numel()
        out = x.new_empty(sum(out_splits) * row)
        dst, src, step = as_bytes(out), as_bytes(flat(x)), row * x.element_size()
        splits = [n * step for n in out_splits], [n * step for n in in_splits]
        view = out.view(sum(out_splits), *x.shape[1:])
        return self._m.launch("all_to_all_v", src, "", (dst, src, *splits), out=view)

    def barrier(self) -> Started:
        """Ends when every rank has started it."""
        self._m.health.require()
        self._check({"operation": "barrier"})
        return self._m.launch("barrier", self._nothing, "", ())

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
    ) -> tuple[Started, torch.Tensor]:
        """Two new tensors: the normalised rows, and the residual with the sum added."""
        what = "all_reduce_add_rms_norm"
        for tensor in (x, residual, weight):
            self._admit(tensor, what)
        if x.shape != residual.shape or x.shape[-1:] != weight.shape:
            shapes = f"{list(x.shape)}, {list(residual.shape)} and {list(weight.shape)}"
            raise CommArgumentError(f"{what}: shapes {shapes} do not fit", fix="see the operator")
        self._check(_record(what, x, eps=eps))
        inp = x.detach().contiguous().view(-1, x.shape[-1])
        total = residual.detach().contiguous().clone().view(inp.shape)
        out = torch.empty_like(inp)
        work = self._m.launch(
            what, inp, "sum", (out, total, inp, weight, eps), out=out.view(x.shape)
        )
        return work, total.view(x.shape)

    # --- shared steps ------------------------------------------------------------------------

    def _all_reduce(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        inp: torch.Tensor,
        op: str,
        result: torch.Tensor,
        copy_back: Callable[[], object] | None,
        *,
        symmetric: bool = False,
    ) -> Started:
        require_reduction(x, op, "all_reduce")
        if self._m.check:
            self._check(_record("all_reduce", x, reduction=op))
        dst = reduced(out)
        src = dst if inp is out else reduced(inp)
        finish = copy_back
        if op == AVG:

            def finish() -> None:
                divide(out, self._size)
                if copy_back is not None:
                    copy_back()

        sent = _sent(op)
        return self._m.launch(
            "all_reduce", src, sent, (dst, src, sent), symmetric=symmetric, out=result,
            finish=finish,
        )  # fmt: skip

    def _broadcast(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        root: int,
        result: torch.Tensor,
        copy_back: Callable[[], object] | None,
    ) -> Started:
        self._rank_exists(root, "broadcast")
        self._check(_record("broadcast", x, root=root))
        dst = as_bytes(target)
        return self._m.launch(
            "broadcast", dst, "", (dst, root), peer=root, out=result, finish=copy_back
        )

    def _all_gather_uneven(self, x: torch.Tensor, sizes: Sequence[int]) -> Started:
        what = "all_gather"
        require_splits(sizes, self._size, what)
        if x.dim() == 0 or x.shape[0] != sizes[self._rank]:
            raise CommArgumentError(f"{what}: this rank has {list(x.shape)}, sizes say {sizes}")
        row = ["rows", *x.shape[1:]]
        self._check(_record(what, x, sizes=list(sizes)) | {"shape": row})
        most = max(sizes)
        inp = x.new_zeros(most, *x.shape[1:])
        inp[: x.shape[0]].copy_(x)
        every = x.new_empty(self._size * most, *x.shape[1:])
        out = x.new_empty(sum(sizes), *x.shape[1:])
        dst, src = as_bytes(every.view(-1)), as_bytes(inp.view(-1))

        def finish() -> None:
            low = 0
            for rank, rows in enumerate(sizes):
                out[low : low + rows].copy_(every[rank * most : rank * most + rows])
                low += rows

        return self._m.launch(what, src, "", (dst, src), out=out, finish=finish)

    def _padded(self, x: torch.Tensor, sizes: Sequence[int], what: str) -> torch.Tensor:
        require_splits(sizes, self._size, what, x.shape[0] if x.dim() else 0)
        whole = x.new_zeros(self._size, max(sizes), *x.shape[1:])
        for rank, piece in enumerate(torch.split(x.detach(), list(sizes))):
            whole[rank, : sizes[rank]].copy_(piece)
        return whole.view(-1)

    def _average(self, out: torch.Tensor, op: str) -> Callable[[], object] | None:
        return (lambda: divide(out, self._size)) if op == AVG and out.numel() else None

    def _joined(self, x: torch.Tensor) -> tuple[int, ...]:
        return ((x.shape[0] if x.dim() else 1) * self._size, *x.shape[1:])

    def _check_pieces(
        self, x: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> None:
        row = _record("all_to_all", x) | {"shape": ["rows", *x.shape[1:]]}
        told = row | {"to": list(in_splits), "from": list(out_splits)}
        self._m.compared(told, lambda: self._compare_pieces(told))

    def _compare_pieces(self, told: Record) -> None:
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
                    raise GroupMismatch(
                        f"{self._m.health.where}: ranks disagree: rank {a} sends {sent[a][b]} "
                        f"rows to rank {b}, which expects {wanted[b][a]}",
                        ranks=(a, b),
                        fix="nothing was communicated; exchange the splits first",
                    )


def _record(operation: str, x: torch.Tensor, **more: object) -> dict[str, object]:
    """What ranks compare of a call."""
    return {"operation": operation, "dtype": str(x.dtype), "shape": list(x.shape)} | more


def _sent(reduction: str) -> str:
    """The reduction that a provider makes for the one that was asked for."""
    return "sum" if reduction == AVG else reduction
