"""The capture of graphs over a stand-in for ``torch.cuda``: no driver is needed.

What a graph computes is told by a device alone; the order of calls is told here.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from trivet.contracts.capture import Capturer, Graph
from trivet.errors import CaptureUnsafe, OrderError
from trivet_triton import graphs as capture


class Stream:
    def __init__(self, cuda, name, handle):
        self.cuda, self.name, self.cuda_stream = cuda, name, handle

    def wait_stream(self, other):
        self.cuda.said.append(f"{self.name} waits for {other.name}")


class Cuda:
    """Notes calls; ``breaks`` are calls that raise what CUDA raises."""

    def __init__(self, breaks=(), handle=7):
        self.said, self.breaks, self.handle = [], set(breaks), handle
        self.current, self.reserved, self.capturing = Stream(self, "outer", 0), 1000, False

    def say(self, word):
        self.said.append(word)
        if word in self.breaks:
            raise RuntimeError(f"CUDA error: {word} is not permitted\nCUDA kernel errors might ...")

    def Stream(self, index):  # noqa: N802  # torch's name
        return Stream(self, "side", self.handle)

    def CUDAGraph(self):  # noqa: N802  # torch's name
        def begin(pool, capture_error_mode):
            assert (pool, capture_error_mode) == ("pool", "thread_local")
            assert self.current.name == "side"
            self.say("capture_begin")

        def end():
            assert self.current.name == "side"
            self.say("capture_end")
            if self.said[-2] == "capture_begin":
                warnings.warn("The CUDA Graph is empty.", UserWarning, stacklevel=1)

        return SimpleNamespace(
            capture_begin=begin, capture_end=end,
            replay=lambda: self.say("replay"), reset=lambda: self.say("reset"),
        )  # fmt: skip

    def stream(self, stream):
        before = self.current

        def switch(to):
            self.current = to
            self.said.append(f"on {to.name}")

        return SimpleNamespace(
            __enter__=lambda: switch(stream), __exit__=lambda *_: switch(before)
        )  # fmt: skip

    def current_stream(self, index):
        return self.current

    def is_current_stream_capturing(self):
        return self.capturing

    def synchronize(self, index):
        self.said.append(f"synchronize {index}")

    def memory_reserved(self, index):
        return self.reserved

    def empty_cache(self):
        self.said.append("empty_cache")

    def graph_pool_handle(self):
        return "pool"


@pytest.fixture
def started(monkeypatch):
    def start(*breaks, **more):
        cuda = Cuda(breaks, **more)
        left = []
        c = SimpleNamespace(_cuda_endAllocateToPool=lambda *given: left.append(given))
        monkeypatch.setattr(capture, "torch", SimpleNamespace(cuda=cuda, _C=c))
        return cuda, capture.GraphCapturer(1), left

    return start


BEGUN = ["synchronize 1", "side waits for outer", "on side", "capture_begin"]
LEFT = ["on outer", "outer waits for side"]


def test_it_is_what_the_contract_asks_for(started):
    cuda, capturer, _ = started()
    assert isinstance(capturer, Capturer)
    assert capturer.pool() == "pool"
    assert cuda.said == ["empty_cache"]
    assert isinstance(capture.TorchGraph(None, 0, 1), Graph)


def test_a_capture_is_on_a_side_stream_and_the_streams_wait_for_each_other(started):
    cuda, capturer, _ = started()
    capturer.begin("pool")
    assert cuda.said == BEGUN
    cuda.said.append("work")
    cuda.reserved += 4096
    graph = capturer.end()
    assert cuda.said[4:] == ["work", "capture_end", *LEFT]
    assert graph.nbytes == 4096
    graph.replay()
    assert cuda.said[-1] == "replay"
    graph.release()
    graph.release()
    assert cuda.said[-2:] == ["synchronize 1", "reset"]
    with pytest.raises(OrderError, match="released"):
        graph.replay()


def test_an_empty_capture_is_abandoned_without_a_warning(started):
    cuda, capturer, left = started()
    capturer.begin("pool")
    capturer.abandon()
    assert cuda.said == [*BEGUN, "capture_end", "reset", *LEFT]
    assert left == []
    capturer.abandon()
    assert cuda.current.name == "outer"


def test_a_broken_capture_ends_with_the_streams_and_the_allocator_as_before(started):
    cuda, capturer, left = started("capture_end")
    capturer.begin("pool")
    cuda.said.append("work")
    with pytest.raises(
        CaptureUnsafe, match=r"invalid: CUDA error: capture_end is not permitted\n"
    ) as e:
        capturer.end()
    assert "boundary" in e.value.fix
    assert cuda.said[-2:] == LEFT
    assert left == [(1, "pool")]
    capturer.begin("pool")
    capturer.abandon()
    assert cuda.said[-2:] == LEFT
    assert left == [(1, "pool")] * 2
    with pytest.raises(OrderError, match="no capture is open"):
        capturer.end()


def test_a_capture_that_cannot_begin_leaves_the_stream(started):
    cuda, capturer, _ = started("capture_begin")
    with pytest.raises(RuntimeError, match="capture_begin"):
        capturer.begin("pool")
    assert cuda.current.name == "outer"
    cuda.breaks.clear()
    capturer.begin("pool")


def test_the_legacy_stream_is_refused(started):
    cuda, capturer, _ = started(handle=0)
    with pytest.raises(CaptureUnsafe, match="legacy"):
        capturer.begin("pool")
    assert cuda.current.name == "outer"


def test_captures_do_not_nest(started):
    cuda, capturer, _ = started()
    capturer.begin("pool")
    with pytest.raises(OrderError, match="open"):
        capturer.begin("pool")
    capturer.abandon()
    cuda.capturing = True
    with pytest.raises(CaptureUnsafe, match="not by trivet"):
        capturer.begin("pool")
