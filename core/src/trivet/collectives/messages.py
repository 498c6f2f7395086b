"""Messages between two ranks of a group, and what all of its operations ask first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trivet.collectives.agreement import Record
from trivet.collectives.launch import Launcher
from trivet.collectives.operands import as_bytes, flat, require_tensor, writable
from trivet.collectives.recorder import CHECK
from trivet.collectives.work import Meeting, Started
from trivet.contracts.collectives import Message
from trivet.errors import CommArgumentError


class Messages:
    """Sends and receives of a group, started."""

    def __init__(self, launcher: Launcher) -> None:
        self._m = launcher
        self._rank = launcher.group.rank
        self._nothing = torch.empty(0, dtype=torch.uint8)

    def send(self, x: torch.Tensor, to: int) -> Started:
        """Send ``x`` to rank ``to``."""
        self._admit(x, "send")
        self._peer(to, "send")
        return self._message(x, Message(True, to, as_bytes(flat(x))), x, None)

    def recv(self, x: torch.Tensor, source: int) -> Started:
        """A new tensor like ``x``: what rank ``source`` sends."""
        self._admit(x, "recv")
        out = torch.empty_like(flat(x))
        return self._recv(x, out, source, out.view(x.shape), None)

    def recv_(self, x: torch.Tensor, source: int) -> Started:
        """As ``recv``, written into ``x``."""
        self._admit(x, "recv")
        target, copy_back = writable(x, "recv_")
        return self._recv(x, target, source, x, copy_back)

    def batch(self, messages: Sequence[Message]) -> Started:
        """Messages of this rank that do not wait for one another; their ``x`` have any dtype.

        Tensors that are received into must be contiguous.
        """
        moved = []
        for message in messages:
            self._admit(message.x, "batch")
            self._peer(message.peer, "batch")
            if not message.sends and not message.x.is_contiguous():
                raise CommArgumentError(
                    "batch: a message is received into a tensor that is not contiguous",
                    fix="use recv_, or receive into a new tensor",
                )
            moved.append(Message(message.sends, message.peer, as_bytes(flat(message.x))))
        if self._m.check:
            started = [self._message(m.x, m, m.x, None) for m in moved]

            def finish() -> None:
                for work in started:
                    work.wait()

            call = self._m.recorder.begin("batch", torch.uint8, 0, "", None, CHECK)
            return Started(call, None, self._m.failed, finish=finish)
        return self._m.launch("batch", moved[0].x if moved else self._nothing, "", (moved,))

    # --- shared steps ------------------------------------------------------------------------

    def _recv(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        source: int,
        result: torch.Tensor,
        copy_back: Callable[[], object] | None,
    ) -> Started:
        self._peer(source, "recv")
        return self._message(x, Message(False, source, as_bytes(target)), result, copy_back)

    def _message(
        self,
        x: torch.Tensor,
        message: Message,
        result: torch.Tensor,
        finish: Callable[[], object] | None,
    ) -> Started:
        m, peer = self._m, message.peer

        def launch() -> Started:
            return m.launch("batch", message.x, "", ([message],), peer=peer)

        if not m.check:
            return m.launch(
                "batch", message.x, "", ([message],), peer=peer, out=result, finish=finish
            )
        source, to = (self._rank, peer) if message.sends else (peer, self._rank)
        told = {"operation": "message", "dtype": str(x.dtype), "shape": list(x.shape)}
        arrived, verify = m.agreement.meet(source, to, told)
        meeting = Meeting(
            m.messages, (source, to), arrived, verify, launch, m.group.timeout,
            m.health.check_aborted,
        )  # fmt: skip
        call = m.recorder.begin("batch", x.dtype, x.numel(), "", peer, CHECK)
        return Started(call, meeting, m.failed, out=result, finish=finish)

    def _admit(self, x: torch.Tensor, what: str) -> None:
        health = self._m.health
        if health.closed or health.failure is not None:
            health.require()
        require_tensor(x, self._m.group.device, what)

    def _rank_exists(self, rank: int, what: str) -> None:
        size = self._m.group.size
        if not 0 <= rank < size:
            raise CommArgumentError(
                f"{what}: {self._m.health.where} has ranks 0 to {size - 1}, not {rank}"
            )

    def _peer(self, rank: int, what: str) -> None:
        self._rank_exists(rank, what)
        if rank == self._rank:
            raise CommArgumentError(f"{what}: rank {rank} cannot exchange messages with itself")

    def _check(self, record: Record) -> None:
        if self._m.check:
            self._m.compare(record)
