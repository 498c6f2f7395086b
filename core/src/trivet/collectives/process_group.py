"""A group as a process group of torch, for code that wants one: DTensor, FSDP, DDP.

Torch calls these methods under the names of its own class, some of them under two: newer releases
renamed those that take one tensor instead of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from trivet.collectives.bridge_work import BridgeWork
from trivet.collectives.native import BRIDGE, gloo
from trivet.collectives.operands import AVG
from trivet.contracts.collectives import Message
from trivet.errors import CommArgumentError, CommUnsupported

if TYPE_CHECKING:
    from trivet.collectives.device import DeviceCollectives
    from trivet.collectives.group import DeviceGroup

_ProcessGroup: Final[Any] = dist.ProcessGroup  # its signatures differ between releases
_torch: Final[Any] = dist.distributed_c10d

_NAMES: Final = {
    "SUM": "sum", "PRODUCT": "prod", "MAX": "max", "MIN": "min", "BAND": "band", "BOR": "bor",
    "BXOR": "bxor", "AVG": AVG,
}  # fmt: skip
_served: list[DeviceCollectives] = []  # torch has one table of backends for a process
_MEANT: Final = tuple((getattr(dist.ReduceOp, name), ours) for name, ours in _NAMES.items())


class TrivetProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """Every call of torch, made by a group of trivet.

    Args:
        group: who makes the calls.
        registered_as: the name by which torch's compiled operations find it.
    """

    supports_coalescing = False
    supports_splitting = False

    def __init__(self, group: DeviceGroup, registered_as: str) -> None:
        super().__init__(group.rank, group.size)
        self.trivet = group
        self._registered_as = registered_as

    # --- what torch asks of it ---------------------------------------------------------------

    def size(self) -> int:
        """The number of members."""
        return self.trivet.size

    def rank(self) -> int:
        """Position of this process."""
        return self.trivet.rank

    def name(self) -> str:
        """The name of the backend."""
        return BRIDGE

    @property
    def group_name(self) -> str:
        """The name by which torch's compiled operations find it."""
        return self._registered_as

    @property
    def group_desc(self) -> str:
        """What torch's logs call it."""
        return f"trivet:{self.trivet.name}"

    def get_group_store(self) -> Any:
        """The store of its members."""
        return self.trivet.store

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name of the backend."""
        return BRIDGE

    def _get_backend(self, device: torch.device) -> TrivetProcessGroup:
        del device
        return self

    def abort(self) -> None:
        """End it on this rank."""
        self.trivet.abort()

    def shutdown(self) -> None:
        """Give it back."""
        self.trivet.close()

    # --- reductions --------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        """Each tensor, reduced in place."""
        op, factor = _reduction(opts)
        started = []
        for x in tensors:
            _scale(x, factor)
            started.append(self.trivet.start.all_reduce_(x.detach(), op))
        return BridgeWork(started, list(tensors))

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        """The same; trivet does not join small tensors."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        """Each tensor, reduced on the root; elsewhere it stays as it is."""
        op, factor = _reduction(opts)
        root = int(opts.rootRank)
        started, follow = [], []
        for x in tensors:
            work = self.trivet.start.reduce(_scaled(x, factor), root, op)
            started.append(work)
            if self.trivet.rank == root:
                follow.append(_copy(x, work.result))
        return BridgeWork(started, list(tensors), follow)

    def reduce_scatter_single(self, out: Tensor, inp: Tensor, opts: Any = None) -> dist.Work:
        """This rank's share of a reduced tensor."""
        op, factor = _reduction(opts)
        work = self.trivet.start.reduce_scatter(_scaled(inp, factor).reshape(-1), op)
        return BridgeWork([work], [out], [_copy(out, work.result)])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(
        self, outs: Sequence[Tensor], inps: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> dist.Work:
        """The same, of a list of shares; shares may differ in size."""
        op, factor = _reduction(opts)
        started, follow = [], []
        for out, shares in zip(outs, inps, strict=True):
            sizes = [share.numel() for share in shares]
            whole = _scaled(torch.cat([share.detach().reshape(-1) for share in shares]), factor)
            work = self.trivet.start.reduce_scatter(whole, op, _uneven(sizes))
            started.append(work)
            follow.append(_copy(out, work.result))
        return BridgeWork(started, list(outs), follow)

    def reduce_scatter_single_coalesced(
        self, outs: Sequence[Tensor], inps: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Several of ``reduce_scatter_single``."""
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outs, inps, strict=True)]
        return BridgeWork(works, list(outs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- movement ----------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        """Each tensor of the root, written into those of the others."""
        start, root = self.trivet.start, int(opts.rootRank)
        return BridgeWork([start.broadcast_(x.detach(), root) for x in tensors], list(tensors))

    def all_gather_single(self, out: Tensor, inp: Tensor, opts: Any = None) -> dist.Work:
        """Every rank's tensor in one."""
        del opts
        work = self.trivet.start.all_gather(inp.detach().reshape(-1))
        return BridgeWork([work], [out], [_copy(out, work.result)])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outs: Sequence[Tensor], inps: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Several of ``all_gather_single``."""
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outs, inps, strict=True)]
        return BridgeWork(works, list(outs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(
        self, outs: Sequence[Sequence[Tensor]], inps: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Every rank's tensor in a list; they may differ in size."""
        del opts
        started, follow = [], []
        for pieces, inp in zip(outs, inps, strict=True):
            sizes = [piece.numel() for piece in pieces]
            work = self.trivet.start.all_gather(inp.detach().reshape(-1), _uneven(sizes))
            started.append(work)
            follow.append(_share_out(pieces, sizes, work.result))
        return BridgeWork(started, [piece for pieces in outs for piece in pieces], follow)

    def allgather_coalesced(
        self, outs: Sequence[Sequence[Tensor]], inps: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """The same, with lists by rank of tensors."""
        by_input = [[row[i] for row in outs] for i in range(len(inps))]
        return self.allgather(by_input, inps, opts)

    def gather(
        self, outs: Sequence[Sequence[Tensor]], inps: Sequence[Tensor], opts: Any
    ) -> dist.Work:
        """Every rank's tensor in a list on the root."""
        root, started, follow = int(opts.rootRank), [], []
        for number, inp in enumerate(inps):
            work = self.trivet.start.gather(inp.detach().reshape(-1), root)
            started.append(work)
            if self.trivet.rank == root:
                sizes = [piece.numel() for piece in outs[number]]
                follow.append(_share_out(outs[number], sizes, work.result))
        return BridgeWork(started, [piece for pieces in outs for piece in pieces], follow)

    def scatter(
        self, outs: Sequence[Tensor], inps: Sequence[Sequence[Tensor]], opts: Any
    ) -> dist.Work:
        """One tensor of the root's list for each rank."""
        root, started, follow = int(opts.rootRank), [], []
        for number, out in enumerate(outs):
            if self.trivet.rank == root:
                whole = torch.cat([piece.detach().reshape(-1) for piece in inps[number]])
            else:
                whole = out.new_empty(out.numel() * self.trivet.size)
            work = self.trivet.start.scatter(whole, root)
            started.append(work)
            follow.append(_copy(out, work.result))
        return BridgeWork(started, list(outs), follow)

    def all_to_all_single(
        self,
        out: Tensor,
        inp: Tensor,
        out_splits: Sequence[int] | None,
        in_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> dist.Work:
        """Pieces of dimension 0 to every rank; splits are rows, none on any rank for equal ones."""
        del opts
        x = inp.detach().contiguous()
        if out_splits or in_splits:
            size = self.trivet.size
            into = list(out_splits or [out.shape[0] // size] * size)
            outof = list(in_splits or [inp.shape[0] // size] * size)
            work = self.trivet.start.all_to_all(x, into, outof)
        else:
            work = self.trivet.start.all_to_all(x)
        return BridgeWork([work], [out], [_copy(out, work.result)])

    alltoall_base = all_to_all_single

    def alltoall(
        self, outs: Sequence[Tensor], inps: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """A tensor to every rank, a tensor from every rank."""
        del opts
        into, outof = [x.numel() for x in outs], [x.numel() for x in inps]
        whole = torch.cat([x.detach().reshape(-1) for x in inps])
        work = self.trivet.start.all_to_all(whole, into, outof)
        return BridgeWork([work], list(outs), [_share_out(outs, into, work.result)])

    # --- messages and the rest ---------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> dist.Work:
        """Send; trivet's messages have no tags."""
        _no_tag(tag)
        return BridgeWork([self.trivet.start.send(x.detach(), to) for x in tensors], [])

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int = 0) -> dist.Work:
        """Receive."""
        _no_tag(tag)
        start = self.trivet.start
        return BridgeWork([start.recv_(x.detach(), source) for x in tensors], list(tensors))

    def batch(self, messages: Sequence[Message]) -> dist.Work:
        """Messages that do not wait for one another."""
        return BridgeWork([self.trivet.start.batch(messages)], [])

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> dist.Work:
        """Not in the contract: ranks could not tell a wrong sender from a slow one."""
        del tensors, tag
        raise CommUnsupported(
            "a group of trivet does not receive from any source",
            operation="recv",
            fix="name the source",
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        """Ends when every rank has started it."""
        del opts
        return BridgeWork([self.trivet.start.barrier()], [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier; who is missing stands in its error in any case."""
        del timeout, wait_all_ranks
        self.trivet.barrier()


def _reduction(opts: Any) -> tuple[str, float | None]:
    """Our name of what is asked for, and a factor that comes before it."""
    wanted = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for theirs, ours in _MEANT:
        if wanted == theirs:
            return ours, None
    factor = getattr(wanted, "factor", None)
    if wanted == dist.ReduceOp.PREMUL_SUM and isinstance(factor, float | int):
        return "sum", float(factor)
    raise CommUnsupported(f"no reduction {wanted}", operation="all_reduce", fix="sum, max, ...")


def _scale(x: Tensor, factor: float | None) -> None:
    if factor is not None:
        x.detach().mul_(factor)


def _scaled(x: Tensor, factor: float | None) -> Tensor:
    return x.detach() if factor is None else x.detach() * factor


def _uneven(sizes: Sequence[int]) -> list[int] | None:
    return list(sizes) if len(set(sizes)) > 1 else None


def _copy(out: Tensor, result: Callable[[], Tensor]) -> Callable[[], object]:
    return lambda: out.detach().copy_(result().view(out.shape))


def _share_out(
    outs: Sequence[Tensor], sizes: Sequence[int], result: Callable[[], Tensor]
) -> Callable[[], object]:
    def follow() -> None:
        for out, piece in zip(outs, torch.split(result(), list(sizes)), strict=True):
            out.detach().copy_(piece.view(out.shape))

    return follow


def _no_tag(tag: int) -> None:
    if tag:
        raise CommUnsupported(
            "messages of a group of trivet have no tags",
            operation="batch",
            fix="order the messages of a pair, or open another group",
        )


def registered(group: DeviceGroup) -> TrivetProcessGroup:
    """A group as a process group that torch knows by name, so that meshes can be made of it."""
    name = f"trivet/{group.name}/{group.calls()['token']}"
    made = TrivetProcessGroup(group, name)
    known = _torch._world  # noqa: SLF001 - torch registers only what it made itself
    known.pg_map[made] = (BRIDGE, group.store)
    known.pg_names[made] = name
    known.pg_backend_config[made] = f"{group.device.type}:{BRIDGE}"
    known.pg_group_ranks[made] = {rank: at for at, rank in enumerate(group.ranks)}
    known.pg_to_tag[made] = f"ptd:{name}"
    known.tags_to_pg.setdefault(f"ptd:{name}", []).append(made)
    _torch._register_process_group(name, made)  # noqa: SLF001
    return made


def register_backend(collectives: DeviceCollectives) -> None:
    """Make ``init_process_group("trivet")`` open groups of a device's collectives.

    Torch itself makes no process group underneath: what nobody brings, gloo serves on the CPU.
    """

    def make(options: Any, _: Any) -> TrivetProcessGroup:
        seconds = options.timeout.total_seconds()
        size, rank = options.group_size, options.group_rank
        ranks = options.global_ranks_in_group or range(size)
        below = gloo(options.store, rank, size, seconds)
        name = str(options.group_id)
        group = collectives.over(below, list(ranks), rank, options.store, name, timeout=seconds)
        return TrivetProcessGroup(group, name)

    if not _served:
        device = collectives.device.type
        dist.Backend.register_backend(BRIDGE, make, extended_api=True, devices=[device])
        _served.append(collectives)
    elif _served[0] is not collectives:
        raise CommArgumentError(
            f'init_process_group("{BRIDGE}") opens groups of {_served[0].device} already',
            fix="one device of a process can have it; use process_group() for the others",
        )
