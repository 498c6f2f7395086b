"""A group of ranks, as an engine sees it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from trivet.collectives import experts as experts_of
from trivet.collectives import explaining
from trivet.collectives.assembly import Plan
from trivet.collectives.health import HARMLESS, meaning
from trivet.collectives.launch import Launcher
from trivet.collectives.operations import Operations
from trivet.collectives.start import Start
from trivet.collectives.survivors import GRACE
from trivet.collectives.symmetric import SymmetricTensor
from trivet.contracts.collectives import OPERATIONS, UNSIZED, Closable, Store
from trivet.contracts.experts import ExpertExchange
from trivet.errors import CommError, CommUnsupported

if TYPE_CHECKING:
    import torch.distributed as dist

    from trivet.collectives.device import DeviceCollectives


class DeviceGroup(Operations):
    """A group of ranks: ``f(x)`` returns a new tensor, ``f_(x)`` writes ``x``.

    Ranks in arguments are positions in the group. Every member makes the same calls in the same
    order, from one thread. ``start.f(x)`` returns ``Work`` instead of waiting.

    Arguments that cannot be right raise ``CommArgumentError`` before anything is communicated, and
    the group is as it was. After ``CommTimeout``, ``PeerLost``, ``CommAborted`` or any other
    ``CommError`` while communicating, the group has failed: every further call raises at once, and
    the survivors go on with ``shrink``. Outputs are undefined then, inputs of ``f(x)`` unharmed.

    Without check mode, arguments that differ between ranks have no defined result, and some
    backends give a wrong one without an error, or end the process; ``check=True`` or
    ``TRIVET_COMM_CHECK=1`` compares operation, dtype and shape first and raises
    ``GroupMismatch`` on every rank.
    """

    def __init__(self, opener: DeviceCollectives, plan: Plan, launcher: Launcher) -> None:
        self._opener = opener
        self._plan = plan
        super().__init__(Start(launcher))
        self._m = launcher

    def __repr__(self) -> str:
        return f"<trivet group {self.name!r}: rank {self.rank} of {self.size} on {self.device}>"

    @property
    def name(self) -> str:
        """The name that it was opened under."""
        return self._m.group.name

    @property
    def rank(self) -> int:
        """Position of this process in the group."""
        return self._m.group.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self._m.group.size

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' ranks in the world, in order of position."""
        return self._plan.ranks

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return self._m.group.device

    @property
    def timeout(self) -> float:
        """Seconds that a call waits for other ranks."""
        return self._m.group.timeout

    @property
    def store(self) -> Store:
        """Its own part of the store of ``torch.distributed``, which all members see."""
        return self._plan.store

    @property
    def lock(self) -> dict[str, Any]:
        """What it chose, as plain values that another one can be held to."""
        return dict(self._m.lock)

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._m.health.closed

    @property
    def failure(self) -> CommError | None:
        """What ended it, or None."""
        return self._m.health.failure

    @property
    def usable(self) -> bool:
        """True until it is closed or has failed."""
        return not self.closed and self.failure is None

    def symmetric(self, shape: Sequence[int], dtype: torch.dtype) -> SymmetricTensor:
        """A tensor at the same place on every rank, which each can address; all ranks call it.

        Raises:
            CommUnsupported: no provider of this group has such memory.
        """
        self._m.health.require()
        provider = self._m.symmetric()
        if provider is None:
            raise CommUnsupported(
                f"{self._m.health.where}: no provider has symmetric memory",
                operation="symmetric",
                fix="use ordinary tensors; explain() lists the providers",
            )
        try:
            return SymmetricTensor(provider, self.rank, shape, dtype)
        except Exception as error:
            raise self._ended(error, "symmetric") from error

    def dispatch(
        self, x: torch.Tensor, experts: torch.Tensor, local: int
    ) -> tuple[torch.Tensor, torch.Tensor, object]:
        """Send tokens to the ranks of their experts; see ``ExpertExchange``.

        Args:
            x: ``[tokens, hidden]``.
            experts: ``[tokens, k]``, ``int64``; negative for none.
            local: experts on each rank; expert ``e`` lives on rank ``e // local``.

        Returns:
            The rows of this rank's experts in order of expert, how many each has, and what
            ``combine`` needs.
        """
        self._m.health.require()
        experts_of.require(x, experts, local, self.size)
        try:
            return self._experts.dispatch(x, experts, local)
        except Exception as error:
            raise self._ended(error, "dispatch") from error

    def combine(self, rows: torch.Tensor, handle: object, weights: torch.Tensor) -> torch.Tensor:
        """Send rows back to their tokens: their sum, weighted by ``weights`` ``[tokens, k]``."""
        self._m.health.require()
        try:
            return self._experts.combine(rows, handle, weights)
        except Exception as error:
            raise self._ended(error, "combine") from error

    def _ended(self, error: Exception, what: str) -> CommError:
        """The error of something that is no single call; the group ends unless it is harmless."""
        found = meaning(error, what)
        return found if isinstance(found, HARMLESS) else self._m.health.fail(found)

    @functools.cached_property
    def _experts(self) -> ExpertExchange:
        return experts_of.exchange(self, [session for _, session in self._m.sessions])

    # --- what it is --------------------------------------------------------------------------

    def providers(self) -> Mapping[str, str]:
        """The first candidate for each operation; size and dtype of a call may choose another."""
        return {name: explaining.first(self._m.table, name) for name in OPERATIONS}

    def table(
        self, dtypes: Sequence[str] = ("float32", "bfloat16"), op: str = "sum"
    ) -> list[dict[str, Any]]:
        """Who makes what at which sizes, as plain values."""
        return list(explaining.rows(self._m.table, {d: getattr(torch, d) for d in dtypes}, op))

    def explain(
        self,
        operation: str = "",
        *,
        dtype: torch.dtype = torch.float32,
        op: str = "sum",
        nbytes: int = 0,
    ) -> str:
        """Who does what here, what is composed of what, and at what cost.

        Args:
            operation: one operation, for which every candidate is judged; all by default.
            dtype: of the call.
            op: of the call.
            nbytes: of the call.
        """
        if not operation:
            return explaining.text(self._m)
        dtype = dtype if operation.startswith(("all_reduce", "reduce")) else torch.uint8
        size = 0 if operation in UNSIZED else nbytes
        return explaining.call(self._m.table, operation, dtype, op, size)

    def graph_safe(self, operation: str, x: torch.Tensor, op: str = "sum") -> bool:
        """Whether who makes such a call may be captured; else ``trivet.capture.boundary`` calls it.

        Args:
            operation: of the call.
            x: the tensor whose dtype and bytes decide who makes it.
            op: of the call.
        """
        computes = operation.startswith(("all_reduce", "reduce"))
        dtype, reduction = (x.dtype, op) if computes else (torch.uint8, "")
        nbytes = 0 if operation in UNSIZED else x.nbytes
        claim = self._m.table.find(operation, dtype, reduction, nbytes).claim
        return claim.graph_safe and not self._m.check

    def calls(self) -> dict[str, Any]:
        """The last calls on this rank, oldest first, as ``trivet comm dump`` reads them."""
        return self._m.recorder.document()

    # --- its life ----------------------------------------------------------------------------

    def process_group(self) -> dist.ProcessGroup:
        """It as a process group of torch, for code that wants one (DTensor, FSDP, ...)."""
        from trivet.collectives.process_group import registered

        made: dist.ProcessGroup = registered(self)
        return made

    def abort(self) -> None:
        """End it on this rank, from any thread: what is under way raises ``CommAborted`` soon."""
        self._m.abort()

    def shrink(self, dead: Collection[int] | None = None, *, grace: float = GRACE) -> DeviceGroup:
        """A new group of those that are left; every survivor makes this call, and no other.

        The store of ``torch.distributed`` must have survived: it is lost with world rank 0 unless
        a launcher keeps it.

        Args:
            dead: positions of the lost ranks, the same on all survivors; None finds out.
            grace: seconds that a slow rank has to make this call, when ``dead`` is None.

        Raises:
            GroupMismatch: this rank came too late, or others were told of other dead.
            CommTimeout: nobody decided in time.
            CommError: the store is gone.
        """
        from trivet.collectives.shrinking import shrunk

        return shrunk(self._opener, self._plan, self._m, dead, grace)

    def close(self) -> None:
        """Give the group back; a second call does nothing. It may be called after a failure.

        torch's own world group stays as it was: who initialised it destroys it.
        """
        m = self._m
        if m.health.closed:
            return
        m.health.closed = True
        try:
            for plugin, session in m.sessions:
                if isinstance(session, Closable):
                    try:
                        session.close()
                    except Exception as error:
                        raise meaning(error, f"close of {m.health.where}: {plugin}") from error
        finally:
            m.dissolve()
