"""The stock providers: backends of ``torch.distributed``, in the terms of the contract.

What each can do is data, as of any vendor. For gloo it was measured: it says so only after a call
was made, on every rank at another time, and some calls end the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trivet.contracts.collectives import Group, Message, Work, provides
from trivet.contracts.terms import Term, between, dtype, one_of

INTEGERS: Final = ("int8", "uint8", "int32", "int64")
FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
COMPLEX: Final = ("complex64", "complex128")

_ABORT_TAG: Final = 1 << 20  # no message that anybody sends has it

_OPS: Final[dict[str, Any]] = {
    "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

_INEXACT: Final = one_of("reduction", "sum", "prod")
_GLOO: Final[tuple[tuple[list[Term], list[str]], ...]] = (
    ([dtype("x", *INTEGERS)], ["order"]),
    ([dtype("x", *FLOATS), one_of("reduction", "max", "min")], ["order"]),
    ([dtype("x", *FLOATS), _INEXACT, between("size", 1, 2)], ["order"]),
    ([dtype("x", *FLOATS), _INEXACT], ["run", "ranks"]),
    ([dtype("x", *COMPLEX), one_of("reduction", "sum")], ["run", "ranks"]),
)
"""What gloo reduces, and what its results can be relied on for."""

_STREAMS: Final = [
    dtype("x", *FLOATS, *INTEGERS), one_of("reduction", "sum", "prod", "max", "min"),
]  # fmt: skip


def _gloo(operation: str, *, on_request: bool = False) -> Callable[[F], F]:
    def mark(method: F) -> F:
        for domain, levels in reversed(_GLOO):
            claim = provides(
                operation, name="torch", domain=domain, determinism=levels, on_request=on_request
            )
            method = claim(method)
        return method

    return mark


class _Waiting(Work):
    """A work of torch on the CPU. Torch cannot say of a message whether it has moved."""

    def __init__(self, work: Any, seconds: float) -> None:
        self._work = work
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timedelta(seconds=self._seconds if timeout is None else timeout))

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


class _Queued(Work):
    """A work of torch on a device with streams, or of a backend without timeouts."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout: float | None = None) -> None:
        if timeout is None:
            self._work.wait()
        else:
            self._work.wait(timedelta(seconds=timeout))

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


class All(Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout: float | None = None) -> None:
        """Wait for each."""
        for work in self._works:
            work.wait(timeout)

    def is_completed(self) -> bool:
        """True when all are."""
        return all(work.is_completed() for work in self._works)


class TorchProvider:
    """What every backend of torch has.

    Args:
        group: the group.
        backend: the process group of torch, or one of its backends.
    """

    def __init__(self, group: Group, backend: Any) -> None:
        self.group = group
        self.backend = backend

    def abort(self) -> None:
        """Interrupt what is under way, where the backend can."""
        with contextlib.suppress(RuntimeError, NotImplementedError):  # few backends can
            self.backend.abort()

    def _work(self, work: Any) -> Work:
        return _Queued(work)

    @provides("all_gather", name="torch")
    def all_gather(self, out: Tensor, inp: Tensor) -> Work:
        """``out[r * n + i] = inp[i] of rank r``."""
        return self._work(self.backend._allgather_base(out, inp))  # noqa: SLF001 - of torch

    @provides("broadcast", name="torch")
    def broadcast(self, x: Tensor, root: int) -> Work:
        """Write ``x`` of rank ``root`` into every other rank's ``x``."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._work(self.backend.broadcast([x], options))

    @provides("gather", name="torch")
    def gather(self, out: Tensor, inp: Tensor, root: int) -> Work:
        """As ``all_gather``, written on rank ``root``."""
        options = dist.GatherOptions()
        options.rootRank = root
        mine = self.group.rank == root
        outs = [list(out.chunk(self.group.size))] if mine and out.numel() else []
        if mine and not outs:
            outs = [[out] * self.group.size]
        return self._work(self.backend.gather(outs, [inp], options))

    @provides("scatter", name="torch")
    def scatter(self, out: Tensor, inp: Tensor, root: int) -> Work:
        """``out[i] = inp[rank * n + i] of rank root``."""
        options = dist.ScatterOptions()
        options.rootRank = root
        mine = self.group.rank == root
        inps = [list(inp.chunk(self.group.size))] if mine and inp.numel() else []
        if mine and not inps:
            inps = [[inp] * self.group.size]
        return self._work(self.backend.scatter([out], inps, options))

    @provides("all_to_all", name="torch")
    def all_to_all(self, out: Tensor, inp: Tensor) -> Work:
        """``out[r * n + i] = inp[rank * n + i] of rank r``."""
        return self.all_to_all_v(out, inp, [], [])

    @provides("all_to_all_v", name="torch")
    def all_to_all_v(
        self, out: Tensor, inp: Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Work:
        """Piece ``r`` of ``inp`` goes to rank ``r``."""
        return self._work(
            self.backend.alltoall_base(
                out, inp, list(out_splits), list(in_splits), dist.AllToAllOptions()
            )
        )

    @provides("batch", name="torch")
    def batch(self, messages: Sequence[Message]) -> Work:
        """Start messages."""
        kinds = {True: dist.isend, False: dist.irecv}
        of = self.backend
        works = dist.batch_isend_irecv(
            [dist.P2POp(kinds[m.sends], m.x, group=of, group_peer=m.peer) for m in messages]
        )
        return All([self._work(work) for work in works])

    @provides("barrier", name="torch")
    def barrier(self) -> Work:
        """Ends when every rank has started it."""
        options = dist.BarrierOptions()
        if self.group.device.index is not None:
            options.device_ids = [self.group.device.index]
        return self._work(self.backend.barrier(options))

    def _all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        if out is not inp:
            out.copy_(inp)
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[reduction]
        return self._work(self.backend.allreduce([out], options))

    def _reduce(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> Work:
        target = out.copy_(inp) if self.group.rank == root else inp.clone()
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = _OPS[reduction], root, 0
        return self._work(self.backend.reduce([target], options))

    def _reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        options = dist.ReduceScatterOptions()
        options.reduceOp = _OPS[reduction]
        return self._work(self.backend._reduce_scatter_base(out, inp, options))  # noqa: SLF001


class Gloo(TorchProvider):
    """Gloo, on the CPU.

    Its averages and products with factors are left out: averages of integers fail after
    communicating. Its ``reduce_scatter`` moves more than ``all_to_all`` and a sum on each rank.
    """

    def abort(self) -> None:
        """Close the connections, so that every wait ends, here and on the other ranks.

        Gloo's own ``abort`` does nothing; a message that does not come in time closes them.
        """
        nothing = torch.empty(1, dtype=torch.uint8)
        for peer in range(self.group.size):
            if peer != self.group.rank:
                with contextlib.suppress(RuntimeError):  # which is what it is for
                    work = self.backend.recv([nothing], peer, _ABORT_TAG)
                    work.wait(timedelta(milliseconds=1))

    def _work(self, work: Any) -> Work:
        return _Waiting(work, self.group.timeout)

    @_gloo("all_reduce")
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[i]``."""
        return self._all_reduce(out, inp, reduction)

    @_gloo("reduce_scatter", on_request=True)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[rank * n + i]``."""
        return self._reduce_scatter(out, inp, reduction)

    @_gloo("reduce")
    def reduce(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> Work:
        """As ``all_reduce``, written on rank ``root``."""
        return self._reduce(out, inp, reduction, root)

    @provides("batch", name="torch")
    def batch(self, messages: Sequence[Message]) -> Work:
        """Start messages."""
        of = self.backend
        works = [(of.send if m.sends else of.recv)([m.x], m.peer, 0) for m in messages]
        return All([self._work(work) for work in works])


class Streams(TorchProvider):
    """A backend for devices with streams; its determinism was not tested, so none is claimed."""

    @provides("all_reduce", name="torch", domain=_STREAMS, graph_safe=True)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[i]``."""
        return self._all_reduce(out, inp, reduction)

    @provides("reduce_scatter", name="torch", domain=_STREAMS, graph_safe=True)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[rank * n + i]``."""
        return self._reduce_scatter(out, inp, reduction)

    @provides("reduce", name="torch", domain=_STREAMS, graph_safe=True)
    def reduce(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> Work:
        """As ``all_reduce``, written on rank ``root``."""
        return self._reduce(out, inp, reduction, root)


class Mpi(TorchProvider):
    """MPI: no ``reduce_scatter``, and gathering into one tensor goes through a list."""

    @provides("all_gather", name="torch")
    def all_gather(self, out: Tensor, inp: Tensor) -> Work:
        """``out[r * n + i] = inp[i] of rank r``."""
        return self._work(self.backend.allgather([list(out.chunk(self.group.size))], [inp]))

    @provides(
        "all_reduce",
        name="torch",
        domain=[
            dtype("x", "float32", "float64", *INTEGERS),
            one_of("reduction", "sum", "prod", "max", "min"),
        ],
    )
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[i]``."""
        return self._all_reduce(out, inp, reduction)


def stock_class(backend: str) -> type[TorchProvider]:
    """The provider for a backend of torch, by its name."""
    return {"gloo": Gloo, "mpi": Mpi}.get(backend, Streams)
