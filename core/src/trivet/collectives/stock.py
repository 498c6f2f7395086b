"""The stock provider: ``torch.distributed``, in the terms of the collective contract."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from trivet.contracts.collectives import Collective, Work
from trivet.errors import CommError

# What gloo can reduce; it says so only after the call was made, on every rank at another time.
_GLOO: Final = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.complex64, torch.complex128,
})  # fmt: skip
_NO_ORDER: Final = frozenset({torch.complex64, torch.complex128})


class _Handle(Work):
    """A work of torch, with seconds for its timeout."""

    def __init__(self, work: dist.Work | None, out: torch.Tensor) -> None:
        if work is None:
            raise CommError("this process is not a member of the group")
        self._work = work
        self._out = out

    def wait(self, timeout: float | None = None) -> None:
        if timeout is None:
            self._work.wait()
        else:
            self._work.wait(timedelta(seconds=timeout))

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def result(self) -> torch.Tensor:
        self.wait()
        return self._out


class StockCollective(Collective):
    """Every operation of ``Collective`` over one process group of torch."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._is_gloo = dist.get_backend(group) == dist.Backend.GLOO
        self._nothing = torch.empty(0, device=device)
        self._reductions = {
            "sum": dist.ReduceOp.SUM,
            "max": dist.ReduceOp.MAX,
            "min": dist.ReduceOp.MIN,
        }
        # torch 2.13 renamed these two and warns about the old names.
        renamed = hasattr(dist, "all_gather_single")
        self._all_gather = getattr(
            dist, "all_gather_single" if renamed else "all_gather_into_tensor"
        )
        self._reduce_scatter = getattr(
            dist, "reduce_scatter_single" if renamed else "reduce_scatter_tensor"
        )

    def all_reduce(self, out: torch.Tensor, inp: torch.Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[i]``."""
        self._require(out.dtype, reduction)
        if out is not inp:
            out.copy_(inp)
        op = self._reductions[reduction]
        return _Handle(dist.all_reduce(out, op, group=self._group, async_op=True), out)

    def reduce_scatter(self, out: torch.Tensor, inp: torch.Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[rank * n + i]``."""
        self._require(out.dtype, reduction)
        op = self._reductions[reduction]
        return _Handle(self._reduce_scatter(out, inp, op, group=self._group, async_op=True), out)

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Work:
        """``out[r * n + i] = inp[i] of rank r``."""
        return _Handle(self._all_gather(out, inp, group=self._group, async_op=True), out)

    def broadcast(self, x: torch.Tensor, source: int) -> Work:
        """Write ``x`` of rank ``source`` into every other rank's ``x``."""
        work = dist.broadcast(x, group=self._group, async_op=True, group_src=source)
        return _Handle(work, x)

    def all_to_all(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
    ) -> Work:
        """Piece ``r`` of ``inp`` goes to rank ``r``."""
        work = dist.all_to_all_single(
            out, inp, list(out_splits), list(in_splits), group=self._group, async_op=True
        )
        return _Handle(work, out)

    def send(self, x: torch.Tensor, to: int) -> Work:
        """Send ``x``."""
        return _Handle(dist.isend(x, group=self._group, group_dst=to), x)

    def recv(self, out: torch.Tensor, source: int) -> Work:
        """Receive into ``out``."""
        return _Handle(dist.irecv(out, group=self._group, group_src=source), out)

    def barrier(self) -> Work:
        """Ends when every rank has started it."""
        return _Handle(dist.barrier(group=self._group, async_op=True), self._nothing)

    def _require(self, dtype: torch.dtype, reduction: str) -> None:
        """Refuse before anything is communicated, so that the group stays usable."""
        known = dtype in _GLOO if self._is_gloo else True
        if not known or (dtype in _NO_ORDER and reduction != "sum"):
            raise CommError(
                f"{dist.get_backend(self._group)} has no {reduction} of {dtype}",
                fix="convert to a dtype that it reduces",
            )
