"""Groups of trivet under torch's own interfaces: functions, DTensor, FSDP, DDP."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import trivet.collectives
from trivet.errors import CommArgumentError, CommUnsupported


def functions(group, size):
    """Each function of torch.distributed on one group; ``group`` None is the world."""
    rank = dist.get_rank(group)
    x = torch.arange(4.0) + rank
    total = torch.arange(4.0) * size + sum(range(size))
    y = x.clone()
    dist.all_reduce(y, group=group)
    assert torch.equal(y, total)
    y = x.clone()
    work = dist.all_reduce(y, dist.ReduceOp.AVG, group=group, async_op=True)
    work.wait()
    assert torch.equal(y, total / size)
    y = x.clone()
    dist.broadcast(y, group=group, group_src=size - 1)
    assert torch.equal(y, torch.arange(4.0) + size - 1)
    pieces = [torch.empty(4) for _ in range(size)]
    dist.all_gather(pieces, x, group=group)
    assert torch.equal(pieces[-1], torch.arange(4.0) + size - 1)
    uneven = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)), group=group)
    assert uneven[-1].eq(size - 1).all()
    shares = [torch.full((3,), float(r)) for r in range(size)]
    out = torch.empty(3)
    dist.reduce_scatter(out, shares, group=group)
    assert out.eq(rank * size).all()
    dist.scatter(out, shares if rank == 0 else None, group=group, group_src=0)
    assert out.eq(rank).all()
    got = [torch.empty(3) for _ in range(size)] if rank == 0 else None
    dist.gather(out, got, group=group, group_dst=0)
    assert rank or got[-1].eq(size - 1).all()
    outs = [torch.empty(3) for _ in range(size)]
    dist.all_to_all(outs, shares, group=group)
    assert all(o.eq(rank).all() for o in outs)
    y = x.clone()
    dist.reduce(y, group=group, group_dst=0)
    assert torch.equal(y, total if rank == 0 else x)
    dist.barrier(group=group)
    if size == 1:
        return
    after, before = (rank + 1) % size, (rank - 1) % size
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x, group=group, group_peer=after),
        dist.P2POp(dist.irecv, y, group=group, group_peer=before),
    ]):  # fmt: skip
        work.wait()
    assert torch.equal(y, torch.arange(4.0) + before)
    with pytest.raises(CommUnsupported, match="tags"):
        dist.send(x, group=group, group_dst=after, tag=3)


def tensors(mesh):
    """Distributed tensors change their placement, and a product of two is right."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    a = torch.arange(64.0).view(8, 8)
    rows = distribute_tensor(a, mesh, [Shard(0)])
    assert torch.equal(rows.full_tensor(), a)
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.full_tensor(), a)
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(a, mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor(), a @ a)
    whole = product.redistribute(mesh, [Replicate()])
    assert isinstance(whole, DTensor)
    torch.testing.assert_close(whole.to_local(), a @ a)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))


def trained(run, parameters, rank, size):
    """Two steps on data that differs by rank."""
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(100 * step)
        batch = torch.randn(size * 2, 8)[rank * 2 : rank * 2 + 2]
        run(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def alone(size):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(100 * step)
        net(torch.randn(size * 2, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def sharded(mesh, size):
    """FSDP trains as one process does."""
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net, mesh=mesh)
    trained(net, net.parameters, mesh.get_local_rank(), size)
    for name, value in alone(size).items():
        torch.testing.assert_close(net.state_dict()[name].full_tensor(), value)


def replicated(group, size):
    """DDP trains as one process does."""
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(model(), process_group=group)
    trained(net, net.parameters, dist.get_rank(group), size)
    for name, value in alone(size).items():
        torch.testing.assert_close(net.module.state_dict()[name], value)


def functions_alone(dev):
    functions(dev.group().process_group(), 1)


def as_a_process_group(dev):
    from torch.distributed.device_mesh import DeviceMesh

    g = dev.group("mesh", timeout=20)
    group = g.process_group()
    functions(group, g.size)
    mesh = DeviceMesh.from_group(group, "cpu")
    tensors(mesh)
    sharded(mesh, g.size)
    replicated(group, g.size)
    with pytest.raises(CommArgumentError, match="of trivet already"):
        dev.adopt(group)
    made = {c["operation"] for c in g.calls()["calls"]}
    assert {"all_gather", "reduce_scatter", "all_reduce"} <= made
    g.close()


def as_a_backend(dev):
    """The whole world on it, with its sub-groups."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.group.WORLD.get_group_store()
    dist.destroy_process_group()
    dev.register_backend()
    dev.register_backend()
    other = trivet.collectives.open(torch.device("cpu"))
    with pytest.raises(CommArgumentError, match="already"):
        other.register_backend()
    dist.init_process_group(
        "trivet", store=dist.PrefixStore("again", store), rank=rank, world_size=size
    )
    functions(None, size)
    mesh = dist.init_device_mesh("cpu", (size,))
    tensors(mesh)
    sharded(mesh, size)
    own = dev.group("own", timeout=20)
    assert own.all_reduce(torch.ones(1)).item() == size
