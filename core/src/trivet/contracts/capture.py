"""Capture: what a vendor brings that records work once and runs it again without the host.

What a plugin's ``trivet_capture`` returns is one ``Capturer``. Without it, core records the calls
of torch operators and runs the list again, which is right on every device and fast on none; its
word of execution is ``emulated``.

All sizes are bytes, as plain integers.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["Capturer", "Graph"]


@runtime_checkable
class Graph(Protocol):
    """Recorded work. Replays of graphs of one pool never overlap, core sees to it."""

    @property
    def nbytes(self) -> int:
        """What it holds besides the tensors that existed before; shared memory counts once."""
        ...

    def replay(self) -> None:
        """Run it on the current stream; it reads and writes the addresses that were captured."""
        ...

    def release(self) -> None:
        """Give its memory back; a second call does nothing, and it is not replayed any more."""
        ...


@runtime_checkable
class Capturer(Protocol):
    """Records what one thread computes.

    ``begin``, then either ``end`` or ``abandon``. Between them the thread's work on the device is
    recorded and not computed. Tensors that the work makes and that are alive at ``end`` keep their
    address, and each replay writes them anew. One recording is open at a time in a process. Work
    was done once before, outside of a recording, so that nothing is set up for the first time
    inside.
    """

    def pool(self) -> object:
        """Memory that several graphs share; they are replayed in the order of their capture."""
        ...

    def begin(self, pool: object) -> None:
        """Start to record; the current stream may be another one until the end.

        Raises:
            trivet.errors.CaptureUnsafe: nothing can be recorded here; nothing was changed.
        """
        ...

    def end(self) -> Graph:
        """Stop to record; the stream of before is current again and waits for the work.

        Raises:
            trivet.errors.CaptureUnsafe: what was recorded cannot be replayed; as ``abandon``.
        """
        ...

    def abandon(self) -> None:
        """Drop the open recording, after an exception: the device can be used as before."""
        ...
