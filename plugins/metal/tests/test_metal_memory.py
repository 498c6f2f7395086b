"""Memory that processor and GPU share, with a stand-in for the counters of ``torch.mps``."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import trivet_conformance.memory as judged
from trivet.errors import OutOfMemory
from trivet.memory.device import DeviceMemory
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import Leg
from trivet_conformance.result import BAD, Status
from trivet_metal.memory import ALIGNMENT, MetalMemory

CPU = torch.device("cpu")
GiB = 1 << 30


class Counters:
    """A Mac with 24 GiB, of which Metal recommends 16; it counts what is told to it."""

    def __init__(self):
        self.live = 0
        self.cached = 3 * GiB

    def recommended_max_memory(self):
        return 16 * GiB

    def current_allocated_memory(self):
        return self.live

    def driver_allocated_memory(self):
        return self.live + self.cached

    def empty_cache(self):
        self.cached = 0

    def holds(self, tensor):
        nbytes = tensor.numel()
        self.live += nbytes
        weakref.finalize(tensor, self.left, nbytes)

    def left(self, nbytes):
        self.live -= nbytes
        self.cached += nbytes


@pytest.fixture
def mac():
    counters = Counters()
    return MetalMemory(CPU, 24 * GiB, counters), counters


def test_what_metal_recommends_is_the_limit_and_the_host_shares_it(mac):
    memory, counters = mac
    info = memory.info()
    assert (info.total_bytes, info.recommended_bytes) == (24 * GiB, 16 * GiB)
    assert info.free_bytes == 13 * GiB
    assert info.unified
    counters.live = 20 * GiB
    assert memory.info().free_bytes == 0


def test_an_unknown_total_is_none():
    info = MetalMemory(CPU, None, Counters()).info()
    assert (info.total_bytes, info.recommended_bytes) == (None, 16 * GiB)


def test_peaks_that_nobody_counts_are_none(mac):
    stats = mac[0].stats()
    assert (stats.allocated_bytes, stats.reserved_bytes) == (0, 3 * GiB)
    assert (stats.max_allocated_bytes, stats.max_reserved_bytes) == (None, None)


def test_the_cache_goes_back_as_a_whole(mac):
    memory, _ = mac
    assert memory.trim(1) == 3 * GiB
    assert memory.trim(1) == 0


def test_an_address_on_the_gpu_is_a_handle():
    traits = MetalMemory(torch.device("mps"), None, Counters()).traits()
    assert (traits.alignment, traits.addressed, traits.host_visible) == (ALIGNMENT, False, False)
    odd = torch.empty(128, dtype=torch.uint8)[16:]
    assert traits.start_of(odd) == 16
    assert MetalMemory(CPU, None, Counters()).traits().addressed


def test_what_is_kept_on_the_host_frees_nothing(mac):
    memory = DeviceMemory(CPU, mac[0])
    weights, scratch = torch.ones(1000), torch.ones(500)
    memory.sleeper.add({"w": weights}, tag="weights")
    memory.sleeper.add({"s": scratch}, tag="workspace")
    assert memory.sleep(keep=["weights"], discard=["workspace"]) == 500 * 4
    memory.wake()
    assert torch.equal(weights, torch.ones(1000))


def test_no_room_is_one_error_that_says_what_to_do(mac, monkeypatch):
    def empty(*args, **kwargs):
        raise RuntimeError("MPS backend out of memory (MPS allocated: 15.9 GiB)")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(OutOfMemory, match="do not fit") as caught:
        mac[0].allocate(1 << 40, tag="kv_cache")
    assert "the host's memory is the same" in str(caught.value)
    assert caught.value.free_bytes == 13 * GiB


def test_the_kit_finds_nothing_wrong_with_it():
    class Counted(MetalMemory):
        def allocate(self, nbytes, *, tag):
            tensor = super().allocate(nbytes, tag=tag)
            counters.holds(tensor)
            return tensor

    counters = Counters()
    leg, bench = Leg("metal", CPU, Counted(CPU, 24 * GiB, counters)), Bench(0, quick=True)
    families = ("memory.info", "memory.allocate", "memory.reclaim")
    cases = [(f, c) for f in families for c in judged.cases(f, leg, bench)]
    found = {(family, case.name): case.run() for family, case in cases}
    assert not {k: v.reason for k, v in found.items() if v.status in BAD}
    assert {k[0] for k, v in found.items() if v.status is Status.PASS} >= {"memory.info"}
    gc.collect()
    assert counters.live == 0
