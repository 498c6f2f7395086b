"""Copies between tiers and between layouts."""

from __future__ import annotations

import pytest
import torch

from trivet.contracts.memory import Copy, Cost, Migrator, Tier, Transfer
from trivet.errors import MemoryFault
from trivet.memory.layouts import BlockLayout, Order, copy_blocks
from trivet.memory.migrate import Mover, TorchMigrator, joined

ROUTE = (Tier.HOST, Tier.DISK)


def pair(n=64):
    return torch.arange(n, dtype=torch.uint8), torch.zeros(n, dtype=torch.uint8)


def test_runs_are_checked_joined_and_copied_any_number_of_times():
    source, target = pair()
    copies = [Copy(source, 8 * i, target, 8 * i + 8, 8) for i in range(3)]
    copies += [Copy(source, 60, target, 0, 4), Copy(source, 0, target, 4, 0)]
    prepared = Mover().prepare(copies, *ROUTE)
    assert [(c.source_offset, c.nbytes) for c in prepared.copies] == [(0, 24), (60, 4), (0, 0)]
    for _ in range(2):
        transfer = prepared.post()
        assert isinstance(transfer, Transfer)
        transfer.wait()
        assert transfer.poll()
        transfer.release()
        assert target[:32].tolist() == [60, 61, 62, 63, 0, 0, 0, 0, *range(24)]
        assert not target[32:].any()
        target.zero_()


def test_runs_of_other_buffers_or_with_gaps_are_not_joined():
    (a, b), (c, d) = pair(), pair()
    assert len(joined([Copy(a, 0, b, 0, 4), Copy(a, 4, d, 4, 4), Copy(c, 8, d, 8, 4)])) == 3
    assert len(joined([Copy(a, 0, b, 0, 4), Copy(a, 5, b, 4, 4)])) == 2
    assert len(joined([Copy(a, 0, b, 0, 4), Copy(a, 4, b, 5, 4)])) == 2


@pytest.mark.parametrize(
    "odd", [(61, 0, 4), (0, 61, 4), (-1, 0, 4), (0, -1, 4), (0, 0, -1)]
)  # fmt: skip
@pytest.mark.parametrize("post", [TorchMigrator().post, lambda c: Mover().prepare(c, *ROUTE)])
def test_a_run_outside_of_its_buffer_starts_nothing(odd, post):
    source, target = pair()
    with pytest.raises(MemoryFault, match="do not lie in the"):
        post([Copy(source, 0, target, 0, 8), Copy(source, odd[0], target, odd[1], odd[2])])
    assert not target.any()
    with pytest.raises(MemoryFault):
        post([Copy(source.float(), 0, target, 0, 8)])


def test_rates_are_unknown_until_something_was_copied():
    mover = Mover()
    assert mover.estimate(*ROUTE, 100) == Cost()
    source, target = pair(1 << 16)
    mover.copy(source, target, ROUTE).wait()
    cost = mover.estimate(*ROUTE, 1 << 20)
    assert cost.seconds == pytest.approx((1 << 20) / cost.bytes_per_second)
    assert mover.estimate(Tier.DISK, Tier.HOST, 100) == Cost()


class Vendors:
    """A migrator from the host to the device; fails where it is told to."""

    def __init__(self, fails=()):
        self.fails, self.released, self.polls = set(fails), 0, 0

    def routes(self):
        return frozenset({(Tier.HOST, Tier.DEVICE)})

    def estimate(self, source, target, nbytes):
        return Cost(1.0, float(nbytes))

    def _step(self, name):
        if name in self.fails:
            raise ValueError(f"{name} is broken")

    def post(self, copies):
        self._step("post")
        self.copies = copies
        return self

    def poll(self):
        self._step("poll")
        self.polls += 1
        return self.polls > 1

    def wait(self):
        self._step("wait")
        for copy in self.copies:
            copy.target.copy_(copy.source)

    def release(self):
        self.released += 1


def test_the_vendor_copies_on_its_routes_and_torch_elsewhere():
    vendor = Vendors()
    assert isinstance(vendor, Migrator)
    mover = Mover(vendor)
    assert mover.migrator(Tier.HOST, Tier.DEVICE) is vendor
    assert isinstance(mover.migrator(*ROUTE), TorchMigrator)
    assert mover.explain(Tier.HOST, Tier.DEVICE) == "host to device: the vendor's Vendors"
    assert (
        mover.explain(*ROUTE) == "host to disk: torch, since it is no route of the vendor's Vendors"
    )
    assert "brings no migrator" in Mover(object()).explain(*ROUTE)
    assert mover.estimate(Tier.HOST, Tier.DEVICE, 5) == Cost(1.0, 5.0)
    source, target = pair()
    transfer = mover.copy(source, target, (Tier.HOST, Tier.DEVICE))
    assert (transfer.poll(), transfer.poll(), transfer.poll()) == (False, True, True)
    transfer = mover.copy(source, target, (Tier.HOST, Tier.DEVICE))
    transfer.wait()
    assert torch.equal(source, target)
    assert vendor.released == 0
    transfer.release()
    transfer.release()
    assert vendor.released == 1


@pytest.mark.parametrize("where", ["post", "poll", "wait"])
def test_a_vendors_batch_that_fails_holds_nothing_and_says_so(where):
    vendor = Vendors({where})
    source, target = pair()
    transfer = Mover(vendor).copy(source, target, (Tier.HOST, Tier.DEVICE))
    for _ in range(2):
        with pytest.raises(MemoryFault, match=f"vendor's Vendors could not copy.*{where} is brok"):
            transfer.wait() if where == "wait" else transfer.poll()
    assert vendor.released == (where != "post")
    assert source.tolist() == list(range(64))


def test_torchs_batch_that_fails_says_so(monkeypatch):
    def broken(copy):
        raise RuntimeError("the bus is gone")

    source, target = pair()
    mover = Mover()
    monkeypatch.setattr("trivet.memory.migrate.run", broken)
    transfer = mover.copy(source, target, ROUTE)
    for call in (transfer.poll, transfer.wait):
        with pytest.raises(MemoryFault, match="torch could not copy a batch: the bus is gone"):
            call()
    transfer.release()
    assert mover.estimate(*ROUTE, 1) == Cost()
    assert not transfer._held


class Event:
    """An accelerator's event that is reached at the second question, or never."""

    def __init__(self, broken=False):
        self.broken, self.asked, self.waited = broken, 0, 0

    def query(self):
        self.asked += 1
        return self.asked > 1

    def synchronize(self):
        self.waited += 1
        if self.broken:
            raise RuntimeError("an illegal address\nmore")


def test_copies_of_an_accelerator_are_done_at_their_event(monkeypatch):
    event = Event()
    monkeypatch.setattr("trivet.memory.migrate._accelerators", lambda copies: [None])
    monkeypatch.setattr("trivet.memory.migrate._event", lambda device: event)
    source, target = pair()
    transfer = Mover().copy(source, target, ROUTE)
    assert (transfer.poll(), len(transfer._held)) == (False, 1)
    assert (transfer.poll(), len(transfer._held), event.waited) == (True, 0, 0)
    event = Event()
    transfer = Mover().copy(source, target, ROUTE)
    transfer.release()  # what was started cannot be recalled
    assert (event.waited, transfer.poll()) == (1, True)
    event = Event(broken=True)
    transfer = Mover().copy(source, target, ROUTE)
    for call in (transfer.wait, transfer.poll):
        with pytest.raises(MemoryFault, match="could not copy a batch: an illegal address"):
            call()


# --- layouts -----------------------------------------------------------------------------------


def cache(layout, blocks=6, seed=0):
    values = torch.randn(blocks, *layout.shape, generator=torch.Generator().manual_seed(seed))
    return values.to(layout.dtype)


def as_nhd(blocks, layout):
    values = blocks.float() * layout.scale
    return values if layout.order is Order.NHD else values.transpose(1, 2)


@pytest.mark.parametrize("orders", [(a, b) for a in Order for b in Order])
@pytest.mark.parametrize(
    "dtypes",
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16),
     (torch.bfloat16, torch.float32), (torch.float32, torch.float16)],
)  # fmt: skip
def test_blocks_change_layout_and_dtype(orders, dtypes):
    a = BlockLayout(4, 3, 8, dtypes[0], orders[0])
    b = BlockLayout(4, 3, 8, dtypes[1], orders[1])
    source, target = cache(a), cache(b, seed=1)
    before = target.clone()
    copy_blocks(source, a, [5, 0], target, b, [1, 3])
    wanted = as_nhd(source[[5, 0]], a).to(dtypes[1]).float()
    assert torch.equal(as_nhd(target[[1, 3]], b), wanted)
    others = [0, 2, 4, 5]
    assert torch.equal(target[others], before[others])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_scales_are_applied_and_values_held_to_the_range(dtype):
    a = BlockLayout(4, 2, 8, torch.float32)
    b = BlockLayout(4, 2, 8, dtype, Order.HND, scale=1 / 32)
    source = cache(a)
    source[0, 0, 0, 0] = 1e6
    narrow, back = torch.zeros(6, *b.shape).to(dtype), torch.zeros_like(source)
    copy_blocks(source, a, range(6), narrow, b, range(6))
    copy_blocks(narrow, b, range(6), back, a, range(6))
    reach = torch.finfo(dtype).max if dtype.is_floating_point else 127
    assert back[0, 0, 0, 0] == reach / 32
    assert torch.isfinite(back).all()
    held = source.clamp(-reach / 32, reach / 32)
    assert torch.allclose(back, held, atol=1 / 60, rtol=1 / 15)


def test_what_does_not_fit_is_refused_and_nothing_is_written():
    a = BlockLayout(4, 3, 8, torch.float32)
    source, target = cache(a), torch.zeros(6, *a.shape)
    other = BlockLayout(8, 3, 4, torch.float32)
    for args in (
        (source, a, [0, 1], target, a, [0]),
        (source, a, [6], target, a, [0]),
        (source, a, [0], target, a, [-1]),
        (source, a, [0, 1], target, a, [2, 2]),
        (source, other, [0], target, a, [0]),
        (source, a, [0], cache(other), other, [0]),
    ):
        with pytest.raises(MemoryFault):
            copy_blocks(*args)
    assert not target.any()
