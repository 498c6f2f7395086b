"""Graphs of torch's builds for CUDA and for HIP: what a vendor's ``trivet_capture`` returns.

A capture happens on a side stream, since the legacy stream cannot be captured. Nothing is computed
while it is open. Graphs of one pool share memory, so that a smaller bucket costs little more than
its kernels' parameters.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from dataclasses import dataclass
from typing import Any, Final

import torch

from trivet.errors import CaptureUnsafe, OrderError

_LEGACY: Final = 0
"""The handle of the stream that every other one waits for."""

_FIX: Final = (
    "find the call that waits, copies from pageable memory or uses another stream, and run it "
    "through trivet.capture.boundary(function, ...); leave CUDA_LAUNCH_BLOCKING unset"
)


class TorchGraph:
    """One captured graph.

    Args:
        graph: torch's own.
        index: of the device.
        nbytes: what its capture added to the memory that torch has reserved.
    """

    def __init__(self, graph: Any, index: int, nbytes: int) -> None:
        self._graph, self._index, self.nbytes = graph, index, nbytes

    def replay(self) -> None:
        """Launches it on the current stream of the calling thread.

        Raises:
            OrderError: it was released.
        """
        if self._graph is None:
            raise OrderError("this graph was released", fix="capture again")
        self._graph.replay()

    def release(self) -> None:
        """Waits for the device and gives the graph's memory back."""
        graph, self._graph = self._graph, None
        if graph is not None:
            torch.cuda.synchronize(self._index)
            graph.reset()


@dataclass
class _Open:
    """A capture that has begun."""

    graph: Any
    pool: Any
    outer: Any
    stream: Any
    reserved: int


class GraphCapturer:
    """Captures what one thread launches on one device.

    Args:
        index: of the device.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._side: Any = None
        self._open: _Open | None = None

    def pool(self) -> object:
        """A memory pool of its own, after what nobody uses went back to the device."""
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.graph_pool_handle()

    def begin(self, pool: object) -> None:
        """Starts to capture on the side stream, which then is the current one.

        Raises:
            OrderError: a capture is open.
            CaptureUnsafe: somebody else captures on this stream, or no stream can be captured.
        """
        if self._open is not None:
            raise OrderError("a capture of this device is open", fix="end or abandon it first")
        if torch.cuda.is_current_stream_capturing():
            what = "the current stream is captured already, not by trivet"
            raise CaptureUnsafe(what, fix="end that capture first")
        if self._side is None:
            self._side = torch.cuda.Stream(self._index)  # type: ignore[no-untyped-call]
        side, outer = self._side, torch.cuda.current_stream(self._index)
        torch.cuda.synchronize(self._index)
        side.wait_stream(outer)
        graph: Any = torch.cuda.CUDAGraph()
        with contextlib.ExitStack() as undo:
            stream: Any = torch.cuda.stream(side)
            stream.__enter__()
            undo.callback(stream.__exit__, None, None, None)
            if torch.cuda.current_stream(self._index).cuda_stream == _LEGACY:
                what = "the current stream is the legacy one, which cannot be captured"
                raise CaptureUnsafe(what, fix="leave streams alone between begin and end")
            reserved = torch.cuda.memory_reserved(self._index)
            # other threads may allocate and wait as they like
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            undo.pop_all()
        self._open = _Open(graph, pool, outer, stream, reserved)

    def end(self) -> TorchGraph:
        """The graph; the stream of before is current again.

        Raises:
            OrderError: no capture is open.
            CaptureUnsafe: some call broke the capture, and the run time says no more than that.
        """
        found = self._closing()
        try:
            found.graph.capture_end()
        except RuntimeError as error:
            self._forget(found)
            what = f"the capture is invalid: {str(error).partition(chr(10))[0]}"
            raise CaptureUnsafe(what, fix=_FIX) from error
        finally:
            self._leave(found)
        nbytes = max(0, torch.cuda.memory_reserved(self._index) - found.reserved)
        return TorchGraph(found.graph, self._index, nbytes)

    def abandon(self) -> None:
        """Ends an open capture, whatever its state, and forgets it."""
        if self._open is None:
            return
        found = self._closing()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a graph without any work
                found.graph.capture_end()
            found.graph.reset()
        except RuntimeError:  # a broken capture ends with an error; that is what is wanted
            self._forget(found)
        finally:
            self._leave(found)

    def _closing(self) -> _Open:
        found, self._open = self._open, None
        if found is None:
            raise OrderError("no capture is open", fix="begin one")
        return found

    def _forget(self, found: _Open) -> None:
        """Lets torch's allocator leave the pool: a failed end does not do that by itself."""
        leave = getattr(torch._C, "_cuda_endAllocateToPool", None)  # noqa: SLF001
        if leave is not None:
            with contextlib.suppress(RuntimeError):  # it has left already
                leave(self._index, found.pool)

    def _leave(self, found: _Open) -> None:
        found.stream.__exit__(None, None, None)
        found.outer.wait_stream(self._side)
