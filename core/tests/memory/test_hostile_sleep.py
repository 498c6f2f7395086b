"""Migrators, owners' functions and allocators that fail while memory sleeps and wakes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from sleepers import CPU, Plain
from trivet.contracts.memory import Copy, Cost, Tier
from trivet.errors import MemoryFault, PartialReclaim, PluginBroken
from trivet.memory.buffers import Buffers, Residency
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.keys import keys_of
from trivet.memory.migrate import Mover
from trivet.memory.sleep import Sleep
from trivet.memory.spill import Spill, SpillStats

ALL = frozenset((a, b) for a in Tier for b in Tier)


class Done:
    """A transfer that was done when it began."""

    def __init__(self, copies):
        for c in copies:
            c.target[c.target_offset : c.target_offset + c.nbytes] = c.source[
                c.source_offset : c.source_offset + c.nbytes
            ]

    def poll(self):
        return True

    def wait(self):
        pass

    def release(self):
        pass


class Migrator:
    """Fails in the step that it is told to."""

    def __init__(self, step=""):
        self.step = step

    def at(self, step):
        if self.step == step:
            raise KeyError(step)

    def routes(self):
        self.at("routes")
        return ALL

    def estimate(self, source, target, nbytes):
        self.at("estimate")
        return Cost() if self.step != "estimates nothing" else None

    def post(self, copies):
        self.at("post")
        if self.step == "posts nothing":
            return None
        done, outer = Done(copies), self
        if self.step in {"poll", "wait", "release"}:

            class Failing(Done):
                pass

            setattr(Failing, self.step, lambda _: outer.at(outer.step))
            done = Failing(copies)
        if self.step == "wait and release":
            done.wait = lambda: 1 / 0
            done.release = lambda: {}["second"]
        return done


STEPS = ["routes", "post", "posts nothing", "wait", "release", "wait and release"]


@pytest.mark.parametrize("step", STEPS)
def test_a_migrator_that_fails_anywhere_leaves_what_slept_or_was_awake(step):
    heap, migrator = Buffers(Plain()), Migrator()
    copies = Plain()
    sleep = Sleep(CPU, host=Buffers(copies), mover=Mover(migrator))
    sleep.watch(heap)
    buffer = heap.allocate(64, tag="weights")
    buffer.raw.fill_(7)
    migrator.step = step
    with pytest.raises(PartialReclaim, match=f"weights/{buffer.generation}"):
        sleep.sleep(keep=["weights"])
    assert sleep.states() == {f"weights/{buffer.generation}": "awake"}
    assert buffer.raw.tolist() == [7] * 64
    assert not copies.out
    migrator.step = ""
    if step == "routes":
        assert sleep.sleep(keep=["weights"]) == 64
        return
    sleep.sleep(keep=["weights"])
    migrator.step = step
    with pytest.raises(PartialReclaim, match=f"weights/{buffer.generation}"):
        sleep.wake()
    assert sleep.states() == {f"weights/{buffer.generation}": "kept"}
    migrator.step = ""
    sleep.wake()
    assert buffer.raw.tolist() == [7] * 64
    assert not copies.out


@pytest.mark.parametrize("step", STEPS)
def test_a_migrator_that_fails_anywhere_fails_no_allocation_of_blocks(step, monkeypatch):
    pool, migrator = KvBlocks(2, 1), Migrator(step)
    caches = [torch.zeros(2, 4)]
    spill = Spill(pool, caches, host_bytes=32, mover=Mover(migrator))
    for token in range(6):
        (block,) = pool.allocate(1)
        pool.publish(block, keys_of([token], 1)[0])
        pool.free([block])
    assert (spill.stats.failed, spill.stats.spilled, len(spill._empty)) == (4, 0, 2)
    assert isinstance(spill.stats.last_error, MemoryFault | PluginBroken)
    assert spill.stats.to_json()["last_error"]
    migrator.step = ""
    pool.free(pool.allocate(2))
    assert spill.stats.spilled == 2


def test_what_a_spill_remembers_of_an_error_holds_no_tensor():
    pool = KvBlocks(1, 1)
    held = []

    class Failing(Migrator):
        def post(self, copies):
            held.extend(weakref.ref(c.source) for c in copies)
            raise KeyError("post")

    spill = Spill(pool, [torch.zeros(1, 4)], host_bytes=32, mover=Mover(Failing()))
    for token in range(2):
        (block,) = pool.allocate(1)
        pool.publish(block, keys_of([token], 1)[0])
        pool.free([block])
    gc.collect()
    assert spill.stats.last_error is not None
    assert [ref() for ref in held] == [None]


def test_stats_with_an_error_that_cannot_be_copied_are_plain_values():
    class Odd(Exception):
        def __init__(self, *, must):
            super().__init__(must)

        def __str__(self):
            raise ZeroDivisionError

    assert "cannot be read" in SpillStats(last_error=Odd(must=1)).to_json()["last_error"]


def test_a_transfer_that_failed_ends_with_its_last_reference():
    transfer = Mover(Migrator("wait")).copy(torch.zeros(4).byte(), torch.ones(4).byte(),
                                            (Tier.HOST, Tier.HOST))  # fmt: skip
    with pytest.raises(MemoryFault, match="could not copy a batch"):
        transfer.wait()
    transfer.release()
    end = weakref.ref(transfer)
    gc.disable()
    try:
        del transfer
        assert end() is None
    finally:
        gc.enable()


def test_estimates_that_are_none_are_one_error():
    for step in ("estimate", "estimates nothing"):
        with pytest.raises(PluginBroken, match="estimates"):
            Mover(Migrator(step)).estimate(Tier.HOST, Tier.DEVICE, 8)


BYTES = torch.zeros(8, dtype=torch.uint8)


@pytest.mark.parametrize("copy", [
    Copy(BYTES, 0, BYTES, 0, float("nan")), Copy(BYTES, 0.0, BYTES, 0, 1),
    Copy(BYTES, 0, BYTES, "0", 1), Copy(None, 0, BYTES, 0, 1), Copy(BYTES, 0, b"12345678", 0, 1),
    Copy(BYTES, 1 << 70, BYTES, 0, 1), Copy(BYTES, 0, BYTES, 0, None),
    Copy(torch.zeros(9).to_sparse(), 0, BYTES, 0, 1),
])  # fmt: skip
def test_a_run_that_is_none_is_refused(copy):
    for mover in (Mover(), Mover(Migrator())):
        with pytest.raises(MemoryFault, match="do not lie in the"):
            mover.prepare([copy], Tier.HOST, Tier.HOST)


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise ZeroDivisionError


def test_errors_that_cannot_be_put_into_words_are_told_by_their_type():
    def fail(*_):
        raise Mute

    heap = Buffers(Plain())
    sleep = Sleep(CPU)
    sleep.watch(heap)
    first, second = (heap.allocate(8, tag=tag) for tag in ("weights", "kv_cache"))
    sleep.made("decode", drop=fail, rebuild=fail)
    sleep.on("weights", reload=fail)
    sleep.on("kv_cache", rebind=fail)
    with pytest.raises(PartialReclaim, match="graph/decode"):
        sleep.sleep(discard=["weights", "kv_cache", "graph"])
    assert {first.residency, second.residency} == {Residency.SUSPENDED}
    with pytest.raises(PartialReclaim) as caught:
        sleep.wake()
    assert len(caught.value.failed) == 2
    assert {first.residency, second.residency} == {Residency.SUSPENDED}


def test_owners_that_call_again_or_free_inside_are_told_so_or_done():
    heap = Buffers(Plain())
    sleep = Sleep(CPU)
    sleep.watch(heap)
    first, second = (heap.allocate(8, tag="kv_cache") for _ in range(2))
    sleep.on("kv_cache", rebind=lambda piece: sleep.wake())
    sleep.sleep(discard=["kv_cache"])
    with pytest.raises(PartialReclaim, match="another sleep or wake is under way"):
        sleep.wake()
    sleep._rebind.clear()
    sleep.on("kv_cache", rebind=lambda piece: [b.free() for b in list(heap)])
    sleep.wake()
    assert {first.residency, second.residency} == {Residency.FREED}
    assert not list(heap)


@pytest.mark.parametrize("tags", [5, None, [["weights"]], [None], [b"weights"], {"none": 1}])
def test_tags_that_are_none_are_refused(tags):
    sleep = Sleep(CPU)
    with pytest.raises(MemoryFault):
        sleep.sleep(keep=tags)
    if tags is not None:
        with pytest.raises(MemoryFault):
            sleep.wake(tags)


def test_what_cannot_sleep_is_refused_as_a_whole():
    sleep = Sleep(CPU)
    for odd in (None, 5, torch.zeros(3).to_sparse()):
        with pytest.raises(MemoryFault, match="weights/odd is no tensor with a storage"):
            sleep.add({"good": torch.zeros(3), "odd": odd})
    for drop, rebuild in ((None, print), (print, "rebuild")):
        with pytest.raises(MemoryFault, match="graph/g cannot be dropped"):
            sleep.made("g", drop=drop, rebuild=rebuild)
    assert sleep.states() == {}


class Clinging(Plain):
    """Gives out, and does not take back when it is told so."""

    clings = False

    def deallocate(self, buffer):
        if self.clings:
            raise ValueError("mine")
        super().deallocate(buffer)


def test_a_copy_that_is_not_taken_back_hides_no_error_and_no_waking(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    heap, copies, migrator = Buffers(Plain()), Clinging(), Migrator()
    sleep = Sleep(CPU, host=Buffers(copies), mover=Mover(migrator))
    sleep.watch(heap)
    buffer = heap.allocate(8, tag="weights")
    buffer.raw.fill_(7)
    migrator.step, copies.clings = "wait", True
    with pytest.raises(PartialReclaim, match="could not copy a batch") as caught:
        sleep.sleep(keep=["weights"])
    assert "did not go back" in caught.value.__cause__.__notes__[0]
    migrator.step, copies.clings = "", False
    sleep.sleep(keep=["weights"])
    sleep.on("weights", reload=lambda _: None)
    copies.clings = True
    with pytest.raises(PartialReclaim, match="does not take 8 bytes back"):
        sleep.sleep(discard=["weights"])
    assert sleep.states() == {f"weights/{buffer.generation}": "kept"}
    sleep.wake()
    assert buffer.raw.tolist() == [7] * 8
    assert [one.exc_type for one in told][:1] == [PluginBroken]
    gc.collect()
    copies.clings = False
    Buffers(copies).settle()
