"""Messages that were started: they move while their rank starts or waits for something here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trivet.contracts.collectives import Message, Work
from trivet.errors import GroupMismatch
from trivet_cpu.collectives import native
from trivet_cpu.collectives.native import native as function

if TYPE_CHECKING:
    from trivet_cpu.collectives.shared_memory import SharedMemoryRanks


class Messages(Work):
    """The messages of one batch.

    A message that finds room is gone when it was started. A larger one moves on in ``wait`` of this
    or any later call of the same group.
    """

    def __init__(self, owner: SharedMemoryRanks, batch: list[Message]) -> None:
        self._owner = owner
        self._open = [(number, m) for m in batch if (number := owner.start(m))]

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all have moved."""
        owner = self._owner
        seconds = owner.group.timeout if timeout is None else timeout
        while self._open:
            number, message = self._open[0]
            code = function("message_wait")(owner.ranks, number, int(seconds * 1e9))
            if code not in {native.DONE, native.MISMATCH}:
                owner.refuse(code)
            self._ended(number, message, code)

    def is_completed(self) -> bool:
        """True when all have moved, or the group has failed."""
        test = function("message_test")
        codes = [test(self._owner.ranks, number) for number, _ in self._open]
        return native.PENDING not in codes or any(code > native.PENDING for code in codes)

    def _ended(self, number: int, message: Message, code: int) -> None:
        said = function("message_said")(number)
        self._open.pop(0)
        self._owner.end(number)
        if code == native.MISMATCH:
            msg = f"rank {message.peer} sends {said} bytes, {message.x.numel()} are expected"
            raise GroupMismatch(msg, ranks=[message.peer, self._owner.group.rank])


def address(message: Message) -> tuple[int, int, int, int]:
    """A message as C takes it."""
    x: torch.Tensor = message.x
    return x.data_ptr(), x.numel() * x.element_size(), message.peer, int(message.sends)
