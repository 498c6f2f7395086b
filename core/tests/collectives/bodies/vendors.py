"""What vendors bring, and how ranks agree on who makes what."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from asking import ends, refuses

import trivet.collectives
from trivet.contracts import between, dtype, one_of
from trivet.contracts.collectives import provides
from trivet.errors import (
    CommError,
    ConfigError,
    GroupMismatch,
    LockMismatch,
    PluginBroken,
    UnknownName,
)

CPU = torch.device("cpu")


class Through:
    """Operations through the store, slow and sure; subclasses mark what they have."""

    made, closed, calls = 0, 0, 0

    def __init__(self, group, store):
        self.group, self.store = group, store
        type(self).made += 1

    def everybody(self, x):
        cls = type(self)
        cls.calls += 1
        self.store.set(f"{cls.calls}/{self.group.rank}", repr(x.tolist()))
        keys = [f"{cls.calls}/{rank}" for rank in range(self.group.size)]
        rows = [eval(self.store.get(key)) for key in keys]  # noqa: S307
        return torch.tensor(rows, dtype=x.dtype)

    def close(self):
        type(self).closed += 1


class Reduces(Through):
    """All-reduce of up to 100 floats, and nothing else."""

    @provides("all_reduce", name="store", determinism=["order"],
              domain=[dtype("x", "float32"), one_of("reduction", "sum"), one_of("hosts", 1),
                      between("nbytes", 0, 400)])  # fmt: skip
    def all_reduce(self, out, inp, reduction):
        out.copy_(self.everybody(inp).sum(0))


class Wrong(Reduces):
    def __init__(self, group, store):
        super().__init__(group, store)
        if group.rank == 1:
            raise ValueError("no card")


class Raises(Through):
    @provides("all_reduce", domain=[dtype("x", "float32"), one_of("reduction", "sum")],
              graph_safe=True)  # fmt: skip
    def all_reduce(self, out, inp, reduction):
        raise KeyError("bug")


class TooBig(Through):
    @provides("all_reduce", domain=[between("size", 64, None)])
    def all_reduce(self, out, inp, reduction):
        raise NotImplementedError


class Gathers(Through):
    """Messages alone: everything else can be made of them."""

    @provides("all_to_all_v")
    def all_to_all_v(self, out, inp, out_splits, in_splits):
        rank = self.group.rank
        cls = type(self)
        cls.calls += 1
        for to, piece in enumerate(torch.split(inp, list(in_splits))):
            self.store.set(f"{cls.calls}/{rank}/{to}", repr(piece.tolist()))
        for source, piece in enumerate(torch.split(out, list(out_splits))):
            got = eval(self.store.get(f"{cls.calls}/{source}/{rank}"))  # noqa: S307
            piece.copy_(torch.tensor(got, dtype=torch.uint8))


def opened(*providers):
    return trivet.collectives.open(CPU, {"acme": list(providers)}, {"acme": "trivet-acme 1"})


def vendor_with_one_operation(_dev):
    dev = opened(Reduces, TooBig)
    g = dev.group()
    assert g.providers()["all_reduce"] == "acme/store"
    assert g.providers()["all_gather"] == "torch/gloo"
    bands = [(r["to_bytes"], r["providers"]) for r in g.table(["float32"])]
    assert bands[:2] == [(400, ["acme/store"]), (None, ["torch/gloo"])]
    text = g.explain("all_reduce", nbytes=8)
    assert "acme/store                  makes it" in text
    assert f"size is {g.size}, outside 64.." in text
    assert "nbytes is 404, outside 0..400" in g.explain("all_reduce", nbytes=404)
    x = torch.arange(3.0) + g.rank
    total = sum(torch.arange(3.0) + r for r in range(g.size))
    assert torch.equal(g.all_reduce(x), total)
    assert torch.equal(x, torch.arange(3.0) + g.rank)
    assert torch.equal(g.all_reduce(x, "avg"), total / g.size)
    assert Reduces.calls == 2
    g.all_reduce_(x)
    assert torch.equal(x, total)
    assert Reduces.calls == 3
    assert g.all_reduce(torch.ones(101)).eq(g.size).all()
    assert g.all_reduce(torch.ones(3), "max").eq(1).all()
    assert g.all_reduce(torch.ones(3, dtype=torch.int64)).eq(g.size).all()
    assert torch.equal(g.all_gather(torch.ones(1)), torch.ones(g.size))
    assert Reduces.calls == 3
    assert [c["provider"] for c in g.calls()["calls"]].count("acme/store") == 3
    assert TooBig.made == 0
    dev.close()
    dev.close()
    assert (Reduces.made, Reduces.closed) == (1, 1)


def order_lists(_dev):
    """Order lists, forbidding and levels of determinism decide among candidates."""
    dev = opened(Reduces)
    g = dev.group("a", prefer={"all_reduce": ["composed/all_gather_sum", "torch/gloo"]})
    assert g.providers()["all_reduce"] == "composed/all_gather_sum"
    assert "order list: argument" in g.explain("all_reduce")
    g = dev.group("b", prefer={"reduce_scatter": ["torch/gloo"]})
    assert g.providers()["reduce_scatter"] == "torch/gloo"
    assert g.reduce_scatter(torch.ones(g.size)).tolist() == [g.size]
    refuses(lambda: dev.group("c", prefer={"all_redouce": "x/y"}), "all_reduce", UnknownName)
    refuses(lambda: dev.group("d", prefer={"all_reduce": "x/y"}), "acme/store", UnknownName)
    g = dev.group("e", determinism=["slice"])
    made = {tuple(r["providers"]) for r in g.table(["float32"]) if r["operation"] == "all_reduce"}
    stock = ("torch/gloo",) if g.size < 3 else ("composed/two_shot",)
    assert stock in made, made
    with trivet.require("batch_invariant"):
        assert "composed/two_shot" in str(dev.group("f").table()) or g.size < 3


def forbidden_by_the_environment(_dev):
    dev = opened(Reduces)
    g = dev.group()
    assert g.providers()["all_reduce"] == "torch/gloo"
    assert "forbidden by TRIVET_FORBID comm.all_reduce" in g.explain("all_reduce")


def vendor_on_one_rank(_dev):
    dev = opened(*([Reduces] if dist.get_rank() == 0 else []))
    said = refuses(dev.group, "candidates for all_reduce: rank 0 has acme/store", GroupMismatch)
    assert Reduces.made == Reduces.closed == 0
    return said


def vendor_of_another_version(_dev):
    version = f"trivet-acme {dist.get_rank()}"
    dev = trivet.collectives.open(CPU, {"acme": Reduces}, {"acme": version})
    return refuses(dev.group, "trivet-acme 1", GroupMismatch)


def other_order_lists(_dev):
    dev = opened(Reduces)
    first = dist.get_rank() == 0
    prefer = {"all_reduce": "torch/gloo"} if first else {}
    said = refuses(lambda: dev.group(prefer=prefer), "rank 0 has torch/gloo", GroupMismatch)
    wrong = {"all_reduce": "nobody/nothing"} if first else {}
    kind = UnknownName if first else CommError
    refuses(lambda: dev.group(prefer=wrong, timeout=20), "names no provider", kind)
    return said


def vendor_that_cannot_open(_dev):
    """It is given up on every rank, and everybody can see why."""
    dev = opened(Wrong)
    g = dev.group(timeout=20)
    assert g.providers()["all_reduce"] == "torch/gloo"
    assert g.all_reduce(torch.ones(3)).eq(g.size).all()
    assert Wrong.closed == (g.rank != 1)
    text = g.explain()
    assert "rank 1: acme raises ValueError: no card" in text
    return text.partition("given up")[2]


def vendor_that_raises(_dev):
    g = opened(Raises).group(timeout=20)
    assert g.graph_safe("all_reduce", torch.ones(3))
    assert not g.graph_safe("all_reduce", torch.ones(3), "max")
    assert not g.graph_safe("all_gather", torch.ones(3))
    checked = opened(Raises).group("checked", check=True, timeout=20)
    assert not checked.graph_safe("all_reduce", torch.ones(3))
    words = "acme/all_reduce raises KeyError: 'bug'"
    ends(lambda: g.all_reduce(torch.ones(3)), CommError, words)
    ends(g.barrier, CommError, "failed before")
    refuses(lambda: trivet.collectives.open(CPU, {"acme": object()}), "object", PluginBroken)


def locked(_dev):
    """A lock holds another group to the same choices; all ranks are refused together."""
    dev = opened(Reduces)
    g = dev.group("a")
    lock = json.loads(json.dumps(g.lock))
    assert dev.group("b", lock=lock).lock == lock
    words = "candidates for all_reduce: locked acme/store"
    refuses(lambda: trivet.collectives.open(CPU).group(lock=lock), words, LockMismatch)
    refuses(lambda: dev.group("c", determinism=["run"], lock=lock), "determinism", LockMismatch)
    refuses(lambda: dev.group("d", lock={**lock, "size": 9}), "digest", ConfigError)
    mine = lock if g.rank == 0 else None
    refuses(lambda: dev.group("e", lock=mine), "disagree on lock", GroupMismatch)
    path = Path(f"lock{g.rank}.json").absolute()
    refuses(lambda: dev.group("f", lock=path), "cannot be read", ConfigError)
