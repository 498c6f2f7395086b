"""Opening, agreeing on, explaining and closing groups; vendors; failures."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

import trivet.collectives
from trivet.contracts.collectives import OPERATIONS, Completed
from trivet.errors import CommError, CommUnavailable, OrderError, PluginBroken

CPU = torch.device("cpu")


def refuses(call, words, error_type=CommError):
    text = f"no {error_type.__name__}"
    try:
        call()
    except error_type as error:
        text = str(error)
    assert words in text, f"expected {words!r}, not {text!r}"
    return text.partition("\n")[0]


def world_is_passed_through(dev):
    g = dev.group()
    assert (g.rank, g.size) == (dist.get_rank(), dist.get_world_size())
    assert g.ranks == tuple(range(g.size))
    assert (g.name, g.device) == ("world", CPU)
    assert dev.group() is g
    refuses(lambda: dev.group(timeout=3), "close it first")
    text = g.explain()
    for word in ("rank", "check off", "gloo", "composed: sum, then division", *OPERATIONS):
        assert word in text, (word, text)
    dev.close()
    dev.close()
    assert g.closed
    refuses(lambda: g.all_reduce(torch.ones(1)), "was closed")
    assert dist.is_initialized()
    again = dev.group()
    assert again is not g
    assert again.all_reduce(torch.ones(1)).item() == again.size


def parts(dev):
    """Every rank names its own group; groups of one name live side by side."""
    world = dev.group()
    own = (0, 2) if world.rank in {0, 2} else (1,)
    for _ in range(3):  # the same again after closing
        g = dev.group("part", ranks=list(reversed(own)))
        assert g.ranks == own
        assert (g.size, g.rank) == (len(own), own.index(world.rank))
        mine = torch.tensor([float(world.rank)])
        assert g.all_reduce(mine).item() == sum(own)
        assert g.all_gather(mine).tolist() == list(own)
        assert g.broadcast(mine, g.size - 1).item() == own[-1]
        assert dev.group("part", ranks=own) is g
        if len(own) == 2:
            peer = 1 - g.rank
            works = g.start.send(mine, peer), g.start.recv(mine, peer)
            assert works[1].result().item() == own[peer]
            works[0].wait()
        g.close()
        g.close()
        refuses(g.barrier, "was closed")
    assert world.all_reduce(torch.ones(1)).item() == 3


def groups_that_do_not_fit(dev):
    rank = dist.get_rank()
    said = [refuses(lambda: dev.group("a", ranks=[0, 1] if rank else [0, 1, 2]), "world")]
    said.append(refuses(lambda: dev.group("b", timeout=5 + rank), "do not ask for the same"))
    said.append(refuses(lambda: dev.group("c", ranks=[0]), "must include itself"))
    said.append(refuses(lambda: dev.group("d", ranks=[rank, 7]), "no world rank 7"))
    said.append(refuses(lambda: dev.group("e", ranks=[rank, rank]), "each once"))
    said.append(refuses(lambda: dev.group("f", backend="nonsense"), "making group f"))
    assert dev.group("g", backend="gloo", timeout=20).all_reduce(torch.ones(1)).item() == 3
    return "\n".join(said)


def order(dev):
    dist.destroy_process_group()
    refuses(dev.group, "init_process_group", OrderError)
    available, dist.is_available = dist.is_available, lambda: False
    refuses(dev.group, "built without", CommUnavailable)
    dist.is_available = available
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dev.group().barrier()
    other = trivet.collectives.open(torch.device("privateuseone", 0))
    refuses(lambda: other.group(backend=None), "no backend for privateuseone", CommUnavailable)


def world_made_anew(dev):
    """A group of a world that was destroyed is neither returned nor destroyed again."""
    rank, size = dist.get_rank(), dist.get_world_size()
    old = dev.group("part", timeout=20)
    store = dist.group.WORLD.get_group_store()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("b", store), rank=rank, world_size=size)
    new = dev.group("part", timeout=20)
    assert new is not old
    old.close()
    assert new.all_reduce(torch.ones(1)).item() == size


# --- check mode ------------------------------------------------------------------------------


def checked_operations(dev):
    g = dev.group("checked", check=True)
    assert "check on" in g.explain()
    x = torch.arange(2.0 * g.size)
    assert torch.equal(g.all_reduce(x), x * g.size)
    assert torch.equal(g.all_gather(x), x.repeat(g.size))
    assert torch.equal(g.broadcast(x), x)
    assert torch.equal(g.reduce_scatter(x), x[2 * g.rank : 2 * g.rank + 2] * g.size)
    g.all_to_all(x)
    rows = [(g.rank + r) % 3 for r in range(g.size)]
    assert g.all_to_all(torch.zeros(sum(rows)), rows, rows).shape == (sum(rows),)
    g.barrier()
    after, before = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    for _ in range(3):
        works = [g.start.send(x, after), g.start.recv(x, before)]
        works += [g.start.send(x + 1, after), g.start.recv(x, before)]
        for work in works:
            work.wait()
            assert work.is_completed()
        assert torch.equal(works[1].result(), x)
        assert torch.equal(works[3].result(), x + 1)


def checked_by_the_environment(dev):
    assert "check on" in dev.group().explain()
    assert "check off" in dev.group("free", check=False).explain()


def mismatches(dev):
    """Every rank raises the same sentence with both sides; the group stays usable."""
    g = dev.group("checked", check=True, timeout=20)
    first = g.rank == 0
    f32, i32 = torch.ones(1000), torch.ones(1000, dtype=torch.int32)
    short, flat = torch.ones(500), torch.ones(4)
    pieces = [1] * g.size
    calls = {
        "dtype": lambda: g.all_reduce(f32 if first else i32),
        "in place": lambda: g.all_reduce_(f32 if first else i32),
        "size": lambda: g.all_reduce(f32 if first else short),
        "shape": lambda: g.all_gather(flat if first else flat.view(2, 2)),
        "reduction": lambda: g.all_reduce(f32, "avg" if first else "sum"),
        "source": lambda: g.broadcast(f32, 0 if first else 1),
        "operation": lambda: g.broadcast(f32) if first else g.all_reduce(f32),
        "barrier": lambda: g.barrier() if first else g.all_reduce(f32),
        "scatter": lambda: g.reduce_scatter(torch.ones(6 * g.size * (1 if first else 2))),
        "rows": lambda: g.all_to_all(torch.ones(g.size), [2] * g.size if first else pieces, pieces),
        "row shape": lambda: g.all_to_all(torch.ones(g.size, 2 if first else 3)),
    }
    said = []
    for name, call in calls.items():
        said.append(f"{name}: {refuses(call, 'ranks disagree')}")
        assert g.all_reduce(torch.ones(1)).item() == g.size
    assert f32.eq(1).all()
    assert i32.eq(1).all()
    if g.rank < 2:
        other = f32 if first else i32
        call = (lambda: g.send(other, 1)) if first else (lambda: g.recv(other, 0))
        said.append(f"message: {refuses(call, 'ranks disagree')}")
        works = [g.start.send(f32, 1 - g.rank), g.start.recv(f32, 1 - g.rank)]
        assert works[1].result().sum().item() == 1000
        works[0].wait()
    assert g.all_reduce(torch.ones(1)).item() == g.size
    return "\n".join(said)


# --- failures --------------------------------------------------------------------------------


def dead_peer(dev):
    g = dev.group("mortal", timeout=5)
    g.barrier()
    if g.rank == 1:
        os._exit(3)
    x = torch.ones(1000)
    refuses(lambda: g.all_reduce(x), "failed")
    assert x.eq(1).all()
    refuses(lambda: g.all_reduce(x), "failed before")
    refuses(lambda: g.start.send(x, 1), "failed before")
    g.close()
    g.close()
    os._exit(0)  # the world group cannot be left in good order any more


def late_peer(dev):
    g = dev.group("hasty", timeout=0.5)
    g.barrier()
    if g.rank == 0:
        refuses(lambda: g.all_reduce(torch.ones(3)), "failed")
        refuses(g.barrier, "failed before")
    dev.group("world").barrier()
    if g.rank != 0:
        refuses(lambda: g.all_reduce(torch.ones(3)), "failed")


def short_wait(dev):
    g = dev.group("patient", timeout=20)
    if g.rank == 0:
        work = g.start.all_reduce(torch.ones(3))
        assert not work.is_completed()
        began = time.monotonic()
        words = refuses(lambda: work.wait(0.2), "all_reduce of group patient")
        assert time.monotonic() - began >= 0.2
        assert refuses(work.wait, "all_reduce") == words
        assert refuses(work.result, "all_reduce") == words
        assert work.is_completed()
        refuses(g.barrier, "failed before")
    dev.group("world").barrier()


def late_in_check_mode(dev):
    g = dev.group("hasty", timeout=0.5, check=True)
    if g.rank == 0:
        refuses(lambda: g.all_reduce(torch.ones(3)), "for ranks [1]")
        refuses(g.barrier, "failed before")
    dev.group("world").barrier()
    h = dev.group("messages", timeout=0.5, check=True)
    if h.rank == 0:
        work = h.start.recv(torch.ones(3), 1)
        assert not work.is_completed()
        refuses(work.wait, "timed out")
        refuses(h.barrier, "failed before")
    dev.group("world").barrier()


# --- vendors ---------------------------------------------------------------------------------


class Vendor:
    """All-reduce of up to 100 floats through the store, and nothing else."""

    name = "acme/store"

    def __init__(self, broken_rank=None, raises=False):
        self.broken_rank, self.raises, self.calls, self.closed = broken_rank, raises, 0, 0

    def open(self, group, store):
        if group.rank == self.broken_rank:
            raise ValueError("no card")
        self.group, self.store = group, store
        return self

    def refuses(self, operation, dtype, numel, reduction):
        return "" if dtype == torch.float32 and numel <= 100 and reduction == "sum" else "not mine"

    def all_reduce(self, out, inp, reduction):
        if self.raises:
            raise KeyError("bug")
        self.calls += 1
        self.store.set(f"{self.calls}/{self.group.rank}", repr(inp.tolist()))
        keys = [f"{self.calls}/{rank}" for rank in range(self.group.size)]
        rows = [torch.tensor(eval(self.store.get(key))) for key in keys]  # noqa: S307
        out.copy_(torch.stack(rows).sum(0))
        return Completed(out)

    def close(self):
        self.closed += 1


def vendor_with_one_operation(_dev):
    vendor = Vendor()
    dev = trivet.collectives.open(CPU, vendor)
    g = dev.group()
    assert g.providers()["all_reduce"] == "acme/store"
    assert g.providers()["all_gather"] == "torch.distributed/gloo"
    assert "acme/store may leave a call" in g.explain()
    x = torch.arange(3.0) + g.rank
    total = sum(torch.arange(3.0) + r for r in range(g.size))
    assert torch.equal(g.all_reduce(x), total)
    assert torch.equal(x, torch.arange(3.0) + g.rank)
    assert torch.equal(g.all_reduce(x, "avg"), total / g.size)
    assert vendor.calls == 2
    g.all_reduce_(x)
    assert torch.equal(x, total)
    assert vendor.calls == 3
    assert g.all_reduce(torch.ones(101)).eq(g.size).all()
    assert g.all_reduce(torch.ones(3), "max").eq(1).all()
    assert g.all_reduce(torch.ones(3, dtype=torch.int64)).eq(g.size).all()
    assert torch.equal(g.all_gather(torch.ones(1)), torch.ones(g.size))
    assert vendor.calls == 3
    dev.close()
    dev.close()
    assert vendor.closed == 1


def vendor_on_one_rank(_dev):
    vendor = Vendor() if dist.get_rank() == 0 else None
    dev = trivet.collectives.open(CPU, vendor)
    said = refuses(dev.group, "ranks disagree")
    assert vendor is None or vendor.closed == 1
    return said


def vendor_that_cannot_open(_dev):
    vendor = Vendor(broken_rank=1)
    dev = trivet.collectives.open(CPU, vendor)
    said = refuses(lambda: dev.group(timeout=20), "no card")
    assert vendor.closed == (dist.get_rank() != 1)
    assert len(dist.distributed_c10d._world.pg_names) == 1  # only the world is left
    return said


def vendor_that_raises(_dev):
    dev = trivet.collectives.open(CPU, Vendor(raises=True))
    refuses(lambda: dev.group().all_reduce(torch.ones(3)), "acme/store failed")
    refuses(lambda: trivet.collectives.open(CPU, object()), "object", PluginBroken)
