"""NCCL as a provider: every operation, through a process group of torch that nobody else has.

Its own group has its own timeout, and an error of NCCL ends the group here and not the process:
torch's watchdog aborts the communicator, after which each call raises and says why. Torch reads how
it shall do that from the environment when a group is made; what a user set there stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from trivet.contracts.collectives import Group, Message, Store, Work, provides
from trivet.contracts.terms import Term, dtype, one_of
from trivet.errors import CommAborted, CommError, CommTimeout, CommUnsupported, PeerLost

_OPS: Final[dict[str, Any]] = {
    "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}  # fmt: skip
_REDUCES: Final[tuple[Term, ...]] = (
    dtype("x", "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"),
    one_of("reduction", *_OPS),
)
ERRORS: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # abort the communicator, leave the process
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # no thread that ends the process
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # nor one that dies of a fault of the device
}
"""How torch's group shall handle errors."""

_LONGEST: Final = 1e8  # seconds; torch counts in milliseconds
_MEANINGS: Final = (
    (CommTimeout, ("timed out", "timeout")),
    (PeerLost, ("remote process", "connection", "network error", "socket")),
    (CommAborted, ("aborted",)),
)


class _Ordered(Work):
    """A work of NCCL, for which the current stream waits."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout: float | None = None) -> None:
        try:
            if timeout is None:
                self._work.wait()
            else:
                self._work.wait(timedelta(seconds=timeout))
        except RuntimeError as error:
            raise meaning(error) from error

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


class NcclRanks:
    """The ranks of one group, over NCCL; its communicator is made by the first call.

    Args:
        group: the group.
        store: where its ranks meet.

    Raises:
        CommUnsupported: this torch has no NCCL.
    """

    def __init__(self, group: Group, store: Store) -> None:
        made = getattr(dist, "ProcessGroupNCCL", None)
        if made is None:
            raise CommUnsupported(
                "this torch was built without NCCL", fix="install a build of torch for CUDA"
            )
        self.group = group
        options = made.Options()
        options._timeout = timedelta(seconds=min(group.timeout, _LONGEST))  # noqa: SLF001  # torch has no other name
        own = dist.PrefixStore("nccl/", store)  # type: ignore[attr-defined, arg-type]
        with _errors_are_ours():
            self.backend: Any = made(own, group.rank, group.size, options)
        self._failed = self._closed = False

    # --- reductions --------------------------------------------------------------------------

    @provides("all_reduce", name="nccl", domain=_REDUCES, graph_safe=True)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[i]``."""
        if out is not inp:
            out.copy_(inp)
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[reduction]
        return self._do("allreduce", [out], options)

    @provides("reduce_scatter", name="nccl", domain=_REDUCES, graph_safe=True)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> Work:
        """``out[i] = reduce over ranks of inp[rank * n + i]``."""
        options = dist.ReduceScatterOptions()
        options.reduceOp = _OPS[reduction]
        return self._do("_reduce_scatter_base", out, inp, options)

    @provides("reduce", name="nccl", domain=_REDUCES, graph_safe=True)
    def reduce(self, out: Tensor, inp: Tensor, reduction: str, root: int) -> Work:
        """As ``all_reduce``, written on rank ``root``."""
        target = out.copy_(inp) if self.group.rank == root else inp.clone()
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = _OPS[reduction], root, 0
        return self._do("reduce", [target], options)

    # --- movement ----------------------------------------------------------------------------

    @provides("all_gather", name="nccl", graph_safe=True)
    def all_gather(self, out: Tensor, inp: Tensor) -> Work:
        """``out[r * n + i] = inp[i] of rank r``."""
        return self._do("_allgather_base", out, inp)

    @provides("broadcast", name="nccl", graph_safe=True)
    def broadcast(self, x: Tensor, root: int) -> Work:
        """Write ``x`` of rank ``root`` into every other rank's ``x``."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._do("broadcast", [x], options)

    @provides("gather", name="nccl", graph_safe=True)
    def gather(self, out: Tensor, inp: Tensor, root: int) -> Work | None:
        """As ``all_gather``, written on rank ``root``."""
        if self.group.rank != root:
            return self.batch([Message(True, root, inp)])
        pieces = self._pieces(out, inp.numel())
        pieces[root].copy_(inp)
        return self.batch([Message(False, r, pieces[r]) for r in self._others()])

    @provides("scatter", name="nccl", graph_safe=True)
    def scatter(self, out: Tensor, inp: Tensor, root: int) -> Work | None:
        """``out[i] = inp[rank * n + i] of rank root``."""
        if self.group.rank != root:
            return self.batch([Message(False, root, out)])
        pieces = self._pieces(inp, out.numel())
        out.copy_(pieces[root])
        return self.batch([Message(True, r, pieces[r]) for r in self._others()])

    @provides("all_to_all", name="nccl", graph_safe=True)
    def all_to_all(self, out: Tensor, inp: Tensor) -> Work:
        """``out[r * n + i] = inp[rank * n + i] of rank r``."""
        return self.all_to_all_v(out, inp, [], [])

    @provides("all_to_all_v", name="nccl", graph_safe=True)
    def all_to_all_v(
        self, out: Tensor, inp: Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Work:
        """Piece ``r`` of ``inp`` goes to rank ``r``."""
        splits = list(out_splits), list(in_splits)
        return self._do("alltoall_base", out, inp, *splits, dist.AllToAllOptions())

    @provides("batch", name="nccl", graph_safe=True)
    def batch(self, messages: Sequence[Message]) -> Work | None:
        """Start messages: all of them are one launch, so that none waits for another."""
        messages = [m for m in messages if m.x.numel()]
        if not messages:
            return None
        self._do("_start_coalescing")
        for message in messages:
            self._do("send" if message.sends else "recv", [message.x], message.peer, 0)
        return self._do("_end_coalescing")

    @provides("barrier", name="nccl")
    def barrier(self) -> Work:
        """Ends when every rank has started it."""
        options = dist.BarrierOptions()
        options.device_ids = [self._index()]
        return self._do("barrier", options)

    # --- life --------------------------------------------------------------------------------

    def abort(self) -> None:
        """Interrupt what is under way; from any thread."""
        self._failed = True
        with suppress(RuntimeError):  # of a communicator that was never made
            self.backend.abort()

    def close(self) -> None:
        """Give the communicator back; after a failure without asking the other ranks."""
        if self._closed:
            return
        self._closed = True
        if self._failed:
            self.abort()
        else:
            torch.cuda.synchronize(self.group.device)
            self.backend.shutdown()

    def _do(self, name: str, *arguments: Any) -> Work:
        try:
            return _Ordered(getattr(self.backend, name)(*arguments))
        except RuntimeError as error:
            self._failed = True
            raise meaning(error) from error

    def _index(self) -> int:
        index: int | None = self.group.device.index
        return torch.cuda.current_device() if index is None else index

    def _others(self) -> list[int]:
        rank, size = self.group.rank, self.group.size
        return [(rank + step) % size for step in range(1, size)]

    def _pieces(self, whole: Tensor, n: int) -> list[Tensor]:
        return [whole[r * n : (r + 1) * n] for r in range(self.group.size)]


def meaning(error: RuntimeError) -> CommError:
    """What an exception of torch's group is in our terms."""
    said = str(error).partition("\n")[0] or type(error).__name__
    whole = str(error).lower()
    for kind, parts in _MEANINGS:
        if any(part in whole for part in parts):
            fix = "see where the other ranks are (trivet comm dump), or read their output"
            return kind(f"NCCL says: {said}", fix=fix)
    return CommError(f"NCCL raises {type(error).__name__}: {said}")


@contextmanager
def _errors_are_ours() -> Iterator[None]:
    added = {name: value for name, value in ERRORS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
