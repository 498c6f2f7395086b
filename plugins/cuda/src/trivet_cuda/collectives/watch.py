"""Learns at once that the process of another rank has ended, so that nobody waits out a timeout."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress


class Watch:
    """A thread that sleeps until one of some processes of this machine ends.

    Where the system cannot say (another PID namespace, no descriptors of processes) nothing is
    watched, and the timeout of the group is what ends a wait.

    Args:
        processes: number of a process by rank.
        ended: is called from the thread, once for each rank whose process ends.
    """

    def __init__(self, processes: Mapping[int, int], ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._ranks: dict[int, int] = {}
        for rank, process in processes.items():
            with suppress(OSError, AttributeError):  # AttributeError: no such call outside Linux
                self._ranks[os.pidfd_open(process)] = rank
        self._thread: threading.Thread | None = None
        if self._ranks:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name="trivet-peers", daemon=True)
            self._thread.start()

    @property
    def watched(self) -> tuple[int, ...]:
        """The ranks whose processes can be watched and have not ended."""
        return tuple(self._ranks.values())

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            os.eventfd_write(self._bell, 1)
            if self._thread is not threading.current_thread():  # as when garbage is collected
                self._thread.join()
            self._thread = None

    def _run(self) -> None:
        with ExitStack() as stack:
            poll = select.poll()
            for descriptor in (self._bell, *self._ranks):
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
            while self._ranks:
                for descriptor, _ in poll.poll():
                    if descriptor == self._bell:
                        return
                    poll.unregister(descriptor)
                    self._ended(self._ranks.pop(descriptor))
            poll.poll()  # the descriptors stay until close
