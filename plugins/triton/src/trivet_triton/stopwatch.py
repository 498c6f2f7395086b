"""Times work of one GPU by its own events, around captured graphs; torch for CUDA or for HIP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import torch

_SAMPLES: Final = 20
_LEAST_US: Final = 500.0
"""A graph of this length or longer drowns the two events around it."""
_MOST_CALLS: Final = 256
_FLUSH_BYTES: Final = 256 << 20
"""More than twice the second-level cache of any GPU so far; it also gives the host its lead."""


class GraphStopwatch(ABC):
    """A ``trivet.kernels.triton.Stopwatch`` of one device; it allocates 256 MiB when first used.

    A vendor's class says what its driver is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device("cuda", device.index or 0)
        self._flush: torch.Tensor | None = None

    def warm(self, call: Callable[[], object]) -> Sequence[float]:
        """Microseconds of one of many calls in one graph, by sample."""
        with torch.cuda.device(self._device):
            once = min(self._samples(self._graph(call, 1), 3))
            calls = max(1, min(_MOST_CALLS, int(_LEAST_US / max(once, 0.1))))
            many = self._samples(self._graph(call, calls), _SAMPLES)
            return [us / calls for us in many]

    def cold(self, call: Callable[[], object]) -> Sequence[float]:
        """Microseconds of a graph of one call behind a write of 256 MiB, by sample."""
        with torch.cuda.device(self._device):
            if self._flush is None:
                self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=self._device)
            return self._samples(self._graph(call, 1), _SAMPLES, flush=self._flush)

    def about(self) -> dict[str, str]:
        """The GPU's name and its driver."""
        return {"device": torch.cuda.get_device_name(self._device), "driver": self.driver()}

    @abstractmethod
    def driver(self) -> str:
        """The version of what decides times besides torch and Triton."""

    @staticmethod
    def _graph(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
        """What was set up for the first time in the call must not be in the graph: it ran once."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    @staticmethod
    def _samples(
        graph: torch.cuda.CUDAGraph, samples: int, flush: torch.Tensor | None = None
    ) -> list[float]:
        for _ in range(3):
            graph.replay()
        marks = []
        for _ in range(samples):
            pair = _event(), _event()
            if flush is not None:
                flush.zero_()
            pair[0].record()
            graph.replay()
            pair[1].record()
            marks.append(pair)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1000 for start, end in marks]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
