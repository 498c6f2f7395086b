"""A group on several machines, which are one here: each rank is told where it is."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import trivet
from trivet.collectives import place
from trivet.errors import CommAborted, CommTimeout, PeerLost

JOB = globals()["JOB"]
LAYOUTS = {3: ["aab", "aba"], 4: ["aabb", "abab"], 5: ["abacb"]}
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")
HIERARCHICAL = "composed/hierarchical"


def opens(function):
    """Marks a body that opens its groups itself."""
    function.opens = True
    return function


def collectives(layout):
    place.host = lambda: f"machine {layout[JOB['rank']]}"
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
def equal_to_one_machine(_group, _store):
    """Whole numbers are exact; bfloat16 is rounded once; an element's bits depend on it alone."""
    for layout in LAYOUTS[JOB["size"]]:
        dev = collectives(layout)
        g = dev.group("ours", timeout=10)
        assert {g.providers()[name] for name in OPERATIONS} == {HIERARCHICAL}, g.explain()
        assert "machines, device cpu" in g.explain()
        plain = dev.group("plain", timeout=10, prefer=dict.fromkeys(OPERATIONS, "torch/gloo"))
        dtypes = (torch.float32, torch.bfloat16, torch.int16, torch.uint8, torch.bool)
        for dtype, n in itertools.product(dtypes, (0, 1, 4099)):
            rng = torch.Generator().manual_seed(n + g.rank)
            x = torch.randint(0, 5, (n * g.size,), generator=rng).to(dtype)
            for op in ("max",) if dtype == torch.bool else ("sum", "avg", "prod", "max"):
                whole = plain.all_reduce(x.to(torch.int32), "prod" if op == "prod" else op)
                if op != "avg" or not dtype.is_floating_point:
                    assert torch.equal(g.all_reduce(x, op), whole.to(dtype)), (dtype, n, op)
                    mine = whole.to(dtype).chunk(g.size)[g.rank] if n else x
                    assert torch.equal(g.reduce_scatter(x, op), mine), (dtype, n, op)
            assert torch.equal(g.all_gather(x), plain.all_gather(x))
            for root in range(g.size):
                assert torch.equal(g.broadcast(x, root), plain.broadcast(x, root))
        noise = torch.randn(9000, generator=torch.Generator().manual_seed(g.rank)).bfloat16()
        total = g.all_reduce(noise)
        assert torch.equal(g.all_reduce(noise[5:70]), total[5:70])
        assert all(torch.equal(total, other) for other in g.all_gather(total).chunk(g.size))
        exact = plain.all_reduce(noise.double()).bfloat16()
        assert (total - exact).abs().max() <= exact.abs().max() / 128  # a bit, where it was a tie
        assert (total != exact).float().mean() < 0.01
        g.close()
        plain.close()
    assert "memfd:trivet" not in Path("/proc/self/maps").read_text(encoding="utf-8")


@opens
def order_is_not_claimed(_group, _store):
    dev = collectives(LAYOUTS[JOB["size"]][0])
    g = dev.group("ordered", timeout=10, determinism=["order"])
    assert g.providers()["all_reduce"] != HIERARCHICAL
    assert g.providers()["all_gather"] == HIERARCHICAL
    g.close()


@opens
def given_up_where_nobody_serves_a_machine(_group, _store):
    """Forbidden on all machines, so that only torch is left: the whole group is torch's."""
    os.environ["TRIVET_FORBID"] = "comm.reduce=cpu/shared_memory"
    dev = collectives(LAYOUTS[JOB["size"]][0])
    g = dev.group("alone", timeout=10)
    assert g.providers()["all_reduce"] == "torch/gloo"
    assert "no plugin makes reduce" in g.explain()
    assert g.all_reduce(torch.ones(3)).eq(g.size).all()
    g.close()
    del os.environ["TRIVET_FORBID"]


def goes_on(g):
    while True:
        g.all_reduce(torch.ones(100))


@opens
def one_is_lost(_group, _store):
    """Whichever machine it is on, and whether or not it leads, all others know soon."""
    layout, victim = JOB["argument"]
    g = collectives(layout).group("mortal", timeout=4)
    g.barrier()
    if g.rank == victim:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        goes_on(g)
    began = time.monotonic()
    with pytest.raises((PeerLost, CommAborted, CommTimeout)) as lost:
        goes_on(g)
    assert time.monotonic() - began < 4 + 8  # a machine that does much else
    if layout[g.rank] == layout[victim]:
        assert (lost.type, lost.value.ranks) == (PeerLost, (victim,)), lost.value
    g.close()
    del g, lost
    Path(JOB["folder"], f"{JOB['rank']}.txt").write_text("went on", encoding="utf-8")
    os._exit(0)  # the world's own connections would complain of the dead
