"""Calls of a group on several streams: each waits for those before it."""

from __future__ import annotations

from typing import Any

import torch


class Streams:
    """The order of one group's calls on a device.

    A kernel of a group must not run beside another of the same group. While a graph is captured
    nothing is ordered here: whoever replays a graph orders it with the group's other calls.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        index: int | None = device.index
        self._index = torch.cuda.current_device() if index is None else index
        self._current: Any = torch._C._cuda_getCurrentRawStream  # noqa: SLF001  # the cheapest way
        self._last: int = self._current(self._index)

    def follow(self) -> None:
        """Have the current stream wait for the one that the last call was on."""
        raw = self._current(self._index)
        if raw != self._last and not torch.cuda.is_current_stream_capturing():
            before: Any = torch.cuda.ExternalStream(self._last, device=self._index)  # type: ignore[no-untyped-call]
            torch.cuda.current_stream(self._index).wait_stream(before)
            self._last = raw
