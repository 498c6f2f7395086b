"""The provider as an engine meets it: chosen by core, equal to what core composes, recoverable."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import trivet
from trivet.contracts.collectives import OPERATIONS
from trivet.errors import GroupMismatch, PeerLost
from trivet_cpu.collectives.native import DTYPES

JOB = globals()["JOB"]
SUM_ONLY = (torch.complex64, torch.complex128, torch.complex32)


def opens(function):
    """Marks a body that opens its groups itself."""
    function.opens = True
    return function


def collectives():
    loopback = {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback.pop()
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo", init_method=f"file://{JOB['folder']}/world", rank=JOB["rank"],
            world_size=JOB["size"], timeout=timedelta(seconds=30),
        )  # fmt: skip
    return trivet.device("cpu").collectives


@opens
def chosen(_group, _store):
    """Shared memory makes everything but what is fused."""
    g = collectives().group("chosen", timeout=10)
    made = {name for name, who in g.providers().items() if who == "cpu/shared_memory"}
    assert made == set(OPERATIONS) - {"all_reduce_add_rms_norm"}, g.explain()
    for dtype in DTYPES:
        assert "cpu/shared_memory" in g.explain("all_reduce", dtype=dtype, nbytes=1 << 20)
    g.close()


@opens
def equal_to_compositions(_group, _store):
    """The same bits as what core builds from torch's operations."""
    dev = collectives()
    names = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
    plain = dict.fromkeys(names, "torch/gloo")
    plain |= {"all_reduce": "composed/two_shot", "reduce_scatter": "composed/all_to_all_sum"}
    ours = dev.group("ours", timeout=10)
    theirs = dev.group("theirs", timeout=10, prefer=plain)
    assert not {theirs.providers()[name] for name in names} & {"cpu/shared_memory"}
    for n, dtype in enumerate(DTYPES):
        g = torch.Generator().manual_seed(10 * n + ours.rank)
        x = torch.randn(1001 * ours.size, generator=g).mul(20)
        x = x.to(dtype) if not dtype.is_complex else x.to(torch.complex64).to(dtype)
        for op in ("sum", "avg") if dtype in SUM_ONLY else ("sum", "avg", "max", "prod"):
            for call in ("all_reduce", "reduce_scatter"):
                a, b = (getattr(group, call)(x, op) for group in (ours, theirs))
                if op == "max":  # a zero of either sign
                    a, b = a.float() + 0, b.float() + 0
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), (call, op, dtype)
        for call in ("all_gather", "all_to_all", "broadcast"):
            a, b = (getattr(group, call)(x) for group in (ours, theirs))
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), (call, dtype)
    flag = torch.tensor([ours.rank == 0, True, False])
    assert ours.all_reduce(flag, "max").tolist() == [True, True, False]
    ours.close()
    theirs.close()


@opens
def symmetric_tensors(_group, _store):
    g = collectives().group("symmetric", timeout=10)
    t = g.symmetric((500, 300), torch.float32)
    t.tensor.fill_(g.rank + 1)
    g.barrier()
    assert [int(p[0, 0]) for p in t.peers] == list(range(1, g.size + 1))
    g.barrier()
    g.all_reduce_(t)
    assert t.tensor.eq(g.size * (g.size + 1) // 2).all()
    t.release()
    g.close()


@opens
def mismatch_is_a_mismatch(_group, _store):
    g = collectives().group("mismatch", timeout=10)
    x = torch.ones(3 + (g.rank == 1))
    with pytest.raises(GroupMismatch, match="rank 0 calls all_reduce sum of 3 float32, rank 1"):
        g.all_reduce(x)
    g.close()


@opens
def shrinks_after_a_death(_group, _store):
    """A rank is killed; the others learn of it at once, and go on in shared memory."""
    g = collectives().group("mortal", timeout=10)
    last = g.size - 1
    g.barrier()
    if g.rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLost) as lost:
        g.all_reduce(torch.ones(2))
    assert lost.value.ranks == (last,)
    smaller = g.shrink(dead=[last])
    assert smaller.providers()["all_reduce"] == "cpu/shared_memory"
    assert smaller.all_reduce(torch.ones(2)).tolist() == [last, last]
    smaller.close()
    g.close()
    del g, smaller
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert "memfd:trivet group" not in maps
    Path(JOB["folder"], f"{JOB['rank']}.txt").write_text("went on", encoding="utf-8")
    os._exit(0)  # the world's own connections would complain of the dead
