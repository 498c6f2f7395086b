"""Opening, agreeing on, explaining and closing groups; vendors; failures."""

from __future__ import annotations

import torch
import torch.distributed as dist
from asking import refuses

import trivet.collectives
from trivet.contracts.collectives import OPERATIONS
from trivet.errors import (
    CommUnavailable,
    OrderError,
)

CPU = torch.device("cpu")


def world_is_passed_through(dev):
    g = dev.group()
    assert (g.rank, g.size) == (dist.get_rank(), dist.get_world_size())
    assert g.ranks == tuple(range(g.size))
    assert (g.name, g.device) == ("world", CPU)
    assert dev.group() is g
    refuses(lambda: dev.group(timeout=3), "close it first")
    text = g.explain()
    for word in ("rank", "check off", "torch/gloo", "an average is a sum", *OPERATIONS):
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
    said.append(refuses(lambda: dev.group("f", backend="nonsense"), "no backend 'nonsense'"))
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


def adopted(dev):
    """A process group of torch is a full provider; closing leaves it as it was."""
    made = dist.new_group([0, 1])
    g = dev.adopt(made, "mine", timeout=10)
    assert (g.name, g.ranks, g.size) == ("mine", (0, 1), 2)
    assert g.all_reduce(torch.ones(3)).eq(2).all()
    g.close()
    x = torch.ones(2)
    dist.all_reduce(x, group=made)
    assert x.eq(2).all()
    dist.destroy_process_group(made)


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
    g = dev.group("compared", check=True, timeout=20)
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
