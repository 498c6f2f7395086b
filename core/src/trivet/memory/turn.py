"""One call of an allocator at a time, also where a finaliser interrupts the one under way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch


class Turn:
    """A call of an allocator that takes one at a time; what was freed meanwhile goes after it.

    Args:
        after: refers to what is called after a call within which something was freed.

    Attributes:
        lock: is held by the one thread that calls.
        inside: its calls that are under way: more than one where a finaliser interrupts it.
        late: what was freed within a call.
    """

    def __init__(self, after: Callable[[], Callable[[], None] | None]) -> None:
        self.lock = threading.RLock()
        self.inside = 0
        self.late: deque[torch.Tensor] = deque()
        self._after = after

    def __enter__(self) -> None:
        self.lock.acquire()
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1
        self.lock.release()
        if self.late and (after := self._after()) is not None:
            after()
