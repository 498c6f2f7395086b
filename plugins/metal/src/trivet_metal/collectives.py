"""Collectives of Macs: through the processor. Every operation is staged, and its name says so.

A Mac has one GPU and torch no backend for it, so that ranks are several processes that share the
GPU, or several Macs. Each call waits for the GPU, copies to the processor, has gloo do the work
there, and copies back; a group of one copies nothing but its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from trivet.contracts import dtype, one_of
from trivet.contracts.collectives import Group, Store, provides
from trivet.contracts.memory import Tier, Traits
from trivet.contracts.topology import Link
from trivet.errors import CommAborted, CommError, CommTimeout, CommUnavailable, PeerLost
from trivet_metal.memory import ALIGNMENT

NAME: Final = "gloo_staged"

_DTYPES: Final = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
_OPS: Final[dict[str, Any]] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_DOMAIN: Final = [dtype("x", *_DTYPES), one_of("reduction", *_OPS)]


class StagedRanks:
    """A group whose members' tensors go through the processor.

    Args:
        group: the group.
        store: its own part of a store.

    Raises:
        CommUnavailable: gloo cannot connect the members.
    """

    def __init__(self, group: Group, store: Store) -> None:
        self.group = group
        self._gloo: Any = None
        self._aborted = False
        if group.size == 1:
            return
        try:
            part = dist.PrefixStore(f"{NAME}/", store)  # type: ignore[attr-defined, arg-type]
            waiting = timedelta(seconds=group.timeout)
            self._gloo = dist.ProcessGroupGloo(part, group.rank, group.size, waiting)
        except (RuntimeError, ValueError) as error:
            fix = "see whether the machines reach each other; GLOO_SOCKET_IFNAME names a network"
            raise CommUnavailable(
                f"{NAME} cannot connect {group.name}: {error}", fix=fix
            ) from error

    @provides("all_reduce", name=NAME, domain=_DOMAIN, determinism=["run", "ranks"])
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """``out[i] = reduce over ranks of inp[i]``."""
        held = self._staged(inp)
        options = dist.AllreduceOptions()
        options.reduceOp = self._op(reduction)
        self._waited(lambda: self._gloo.allreduce([held], options))
        out.copy_(held)

    @provides("all_gather", name=NAME)
    def all_gather(self, out: Tensor, inp: Tensor) -> None:
        """``out[r * n + i] = inp[i] of rank r``."""
        held, made = self._staged(inp), torch.empty(out.shape, dtype=out.dtype)
        if self._gloo is None:
            made = held
        else:
            self._waited(lambda: self._gloo._allgather_base(made, held))  # noqa: SLF001 - torch's
        out.copy_(made)

    @provides("broadcast", name=NAME)
    def broadcast(self, x: Tensor, root: int) -> None:
        """Writes ``x`` of rank ``root`` into every other rank's ``x``."""
        held = self._staged(x)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._waited(lambda: self._gloo.broadcast([held], options))
        x.copy_(held)

    @provides("all_to_all", name=NAME)
    def all_to_all(self, out: Tensor, inp: Tensor) -> None:
        """``out[r * n + i] = inp[rank * n + i] of rank r``."""
        held, made = self._staged(inp), torch.empty(out.shape, dtype=out.dtype)
        if self._gloo is None:
            made = held
        else:
            options = dist.AllToAllOptions()
            self._waited(lambda: self._gloo.alltoall_base(made, held, [], [], options))
        out.copy_(made)

    def abort(self) -> None:
        """Ends what waits, from another thread."""
        self._aborted = True

    def _op(self, reduction: str) -> Any:
        if reduction not in _OPS:
            msg = f"{NAME} reduces no {reduction!r}"
            raise CommError(msg, fix=f"one of {', '.join(_OPS)}")
        return _OPS[reduction]

    def _staged(self, inp: Tensor) -> Tensor:
        """A copy on the processor, made after what the GPU was given before."""
        return inp.detach().to("cpu", copy=True)

    def _waited(self, start: Callable[[], Any]) -> None:
        """Has gloo do something, and waits; nothing where there is only this rank.

        Gloo itself cannot be interrupted, so that it is looked at until it is done.
        """
        if self._gloo is None:
            return
        end, pause = time.monotonic() + self.group.timeout, 20e-6
        others = tuple(r for r in range(self.group.size) if r != self.group.rank)
        try:
            work = start()
            while not work.is_completed():
                if self._aborted:
                    raise CommAborted(f"{NAME}: {self.group.name} was aborted", fix="a new group")
                if time.monotonic() > end:
                    msg = f"{NAME}: nothing came within {self.group.timeout} s"
                    raise CommTimeout(msg, ranks=others, fix="see where the others are")
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)
            work.wait()
        except RuntimeError as error:
            text = str(error).partition("\n")[0]
            kind = CommTimeout if "imed out" in text else PeerLost
            raise kind(f"{NAME}: {text}", ranks=others, fix="make a new group") from error


class MetalTopology:
    """One GPU, which nothing connects to another."""

    def links(self) -> Sequence[Link]:
        """None: what connects Macs is their network."""
        return ()

    def reaches(self, reader: int, owner: int) -> bool:
        """A GPU reads its own memory."""
        return reader == owner

    def traits(self) -> Traits:
        """What holds for torch's tensors there."""
        return Traits(torch.device("mps"), Tier.DEVICE, ALIGNMENT, addressed=False)
