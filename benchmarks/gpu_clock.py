"""Time on a GPU: every call of the benchmarks that needs one is here, with a stand-in beside it.

``cold``: the second-level cache is filled with something else before each timed call, and the
stream is kept busy long enough that the host is always ahead; what is timed is the device, between
two events. ``replayed``: a graph of several calls, so that their data stay in the cache and the
host has no part. ``host``: what one call costs the thread that makes it.

Labels take turns in each round, so that clocks and temperature are the same for all of them.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

Call = Callable[[], object]
FLUSH_BYTES = 256 << 20
"""More than the second-level cache of any GPU of today."""


class Clock(Protocol):
    """What the benchmarks ask of a device."""

    device: torch.device

    def copy_bandwidth(self) -> float:
        """Bytes a second that a large copy reads and writes together."""

    def cold(self, calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
        """Median microseconds of each call, nothing of its data in the cache."""

    def replayed(self, calls: Mapping[str, Call], rounds: int, inner: int) -> dict[str, float]:
        """Median microseconds of each call inside a captured graph; absent where capture fails."""

    def host(self, call: Call, count: int) -> float:
        """Microseconds of the calling thread for one call, the best of several runs."""

    def wait(self) -> None:
        """Until the device has done everything."""

    def alive(self) -> bool:
        """Whether the device still answers: after some faults nothing runs in this process."""

    def release(self) -> None:
        """Gives back the memory that nobody holds: the next cell may be a large one."""

    def description(self) -> dict[str, object]:
        """The device and its versions."""


def host_microseconds(call: Call, count: int, wait: Callable[[], object]) -> float:
    """The best mean of five runs: what disturbs a run only makes it longer."""
    for _ in range(max(1, count // 10)):
        call()
    best = float("inf")
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    wait()
    return best * 1e6


def event() -> Any:
    """An event that records the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Gpu:
    """The current CUDA device."""

    def __init__(self, bytes_copied: int = 1 << 31) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.device)
        self._bytes, self._lead = bytes_copied, 0

    def copy_bandwidth(self) -> float:
        """See ``Clock``."""
        source = torch.randn(self._bytes // 2, device=self.device, dtype=torch.bfloat16)
        target = torch.empty_like(source)
        microseconds = self.cold({"copy": lambda: target.copy_(source)}, 21)["copy"]
        return 2 * source.nbytes / microseconds * 1e6

    def keep_ahead(self, host_microseconds: float) -> None:
        """Idles the stream before each cold call for longer than the slowest host takes."""
        cycles_a_microsecond = 2000
        self._lead = int(max(0.0, 1.5 * host_microseconds - 40) * cycles_a_microsecond)

    def cold(self, calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
        """See ``Clock``."""
        for call in calls.values():
            call()
        pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start, end = event(), event()
                self._flush.zero_()
                if self._lead:
                    torch.cuda._sleep(self._lead)  # type: ignore[no-untyped-call]  # noqa: SLF001
                start.record()
                call()
                end.record()
                pairs[name].append((start, end))
        self.wait()
        return {n: statistics.median(a.elapsed_time(b) * 1e3 for a, b in p)
                for n, p in pairs.items()}  # fmt: skip

    def replayed(self, calls: Mapping[str, Call], rounds: int, inner: int) -> dict[str, float]:
        """See ``Clock``."""
        graphs = {}
        for name, call in calls.items():
            try:
                graphs[name] = self._captured(call, inner)
            except RuntimeError as error:
                print(f"    {name} cannot be captured: {' '.join(str(error).split())[:200]}")
                self.wait()
        pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
        for number in range(rounds + 1):
            for name, graph in graphs.items():
                start, end = event(), event()
                start.record()
                graph.replay()
                end.record()
                if number:
                    pairs[name].append((start, end))
        self.wait()
        return {n: statistics.median(a.elapsed_time(b) * 1e3 for a, b in p) / inner
                for n, p in pairs.items()}  # fmt: skip

    def _captured(self, call: Call, inner: int) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(inner):
                call()
        return graph

    def host(self, call: Call, count: int) -> float:
        """See ``Clock``."""
        return host_microseconds(call, count, self.wait)

    def wait(self) -> None:
        """See ``Clock``."""
        torch.cuda.synchronize()

    def alive(self) -> bool:
        """See ``Clock``."""
        try:
            self.wait()
        except RuntimeError as error:
            print(f"the device has failed: {' '.join(str(error).split())[:300]}", file=sys.stderr)
            return False
        return True

    def release(self) -> None:
        """See ``Clock``."""
        gc.collect()
        torch.cuda.empty_cache()

    def description(self) -> dict[str, object]:
        """See ``Clock``."""
        found = torch.cuda.get_device_properties(self.device)
        return {
            "name": found.name,
            "arch": f"sm_{found.major}{found.minor}",
            "memory": found.total_memory,
            "processors": found.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }


class StandIn:
    """The CPU in place of a GPU: it makes the same calls and reads a clock on the wall."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def copy_bandwidth(self) -> float:
        """See ``Clock``."""
        source = torch.ones(1 << 16)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.cold({"": lambda: target.copy_(source)}, 3)[""] * 1e6

    def keep_ahead(self, host_microseconds: float) -> None:
        """Has no stream."""

    def cold(self, calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
        """See ``Clock``."""
        seen: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                seen[name].append(max(1e-3, (time.perf_counter() - start) * 1e6))
        return {name: statistics.median(times) for name, times in seen.items()}

    def replayed(self, calls: Mapping[str, Call], rounds: int, inner: int) -> dict[str, float]:
        """See ``Clock``."""
        del inner
        return self.cold(calls, rounds)

    def host(self, call: Call, count: int) -> float:
        """See ``Clock``."""
        return host_microseconds(call, min(count, 2), self.wait)

    def wait(self) -> None:
        """Has nothing to wait for."""

    def alive(self) -> bool:
        """Always answers."""
        return True

    def release(self) -> None:
        """Has nothing to give back."""

    def description(self) -> dict[str, object]:
        """See ``Clock``."""
        return {"name": "stand-in on the CPU"}


def clock() -> Gpu | StandIn:
    """The GPU where there is one."""
    return Gpu() if torch.cuda.is_available() else StandIn()
