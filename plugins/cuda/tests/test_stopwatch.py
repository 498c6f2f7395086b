"""The stopwatch over a stand-in of torch's graphs and events, whose clock is told the time."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from trivet_cuda import stopwatch


class Device:
    """A device that does one thing after the other; times are microseconds."""

    def __init__(self):
        self.now, self.open = 0.0, None
        self.log = []

    def work(self, us):
        if self.open is None:
            self.now += us
            self.log.append(us)
        else:
            self.open.work.append(us)


@pytest.fixture
def device(monkeypatch):
    made = Device()

    class Graph:
        def __init__(self):
            self.work = []

        def replay(self):
            made.work(4 + sum(self.work))  # a replay itself takes 4

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            self.at = made.now

        def elapsed_time(self, other):
            return (other.at - self.at) / 1000

    @contextlib.contextmanager
    def graph(one):
        made.open = one
        yield
        made.open = None

    stream = SimpleNamespace(wait_stream=lambda other: None)
    stand_in = SimpleNamespace(
        CUDAGraph=Graph,
        Event=Event,
        Stream=lambda: stream,
        current_stream=lambda: stream,
        device=lambda which: contextlib.nullcontext(),
        graph=graph,
        stream=lambda one: contextlib.nullcontext(),
        synchronize=lambda: None,
        get_device_name=lambda which: "Stand-in",
    )
    monkeypatch.setattr(stopwatch.torch, "cuda", stand_in)
    flush = SimpleNamespace(zero_=lambda: made.work(100))
    monkeypatch.setattr(stopwatch.torch, "empty", lambda *a, **k: flush)
    return made


def test_warm_is_one_of_many_calls_so_that_the_replay_hardly_counts(device):
    watch = stopwatch.GraphStopwatch(torch.device("cuda", 0))
    samples = watch.warm(lambda: device.work(6))
    assert len(samples) == 20
    assert samples[0] == pytest.approx(6 + 4 / 50)  # 500 us are 50 calls of 10


def test_a_long_call_is_measured_alone_and_a_short_one_not_endlessly(device):
    watch = stopwatch.GraphStopwatch(torch.device("cuda", 0))
    assert watch.warm(lambda: device.work(5000))[0] == pytest.approx(5004)
    assert watch.warm(lambda: device.work(0))[0] == pytest.approx(4 / 125)


def test_cold_has_a_flush_before_each_call_and_not_within(device):
    watch = stopwatch.GraphStopwatch(torch.device("cuda", 0))
    assert watch.cold(lambda: device.work(6)) == pytest.approx([10.0] * 20)
    assert device.log.count(100) == 20


def test_device_and_driver_are_named(device, monkeypatch, tmp_path):
    file = tmp_path / "version"
    file.write_text("580.1\n")
    monkeypatch.setattr(stopwatch, "_DRIVER", file)
    about = stopwatch.GraphStopwatch(torch.device("cuda", 0)).about()
    assert about == {"device": "Stand-in", "driver": "580.1"}
