"""Who makes which call of a group of GPUs, at which sizes, and why somebody does not."""

from __future__ import annotations

import itertools

import pytest
import torch

import required
from trivet.collectives.assembly import brought, sources_of
from trivet.collectives.candidates import candidates, group_facts
from trivet.collectives.table import Table
from trivet.contracts.collectives import Group, Member
from trivet.errors import CommUnsupported
from trivet.selection.authority import Policy
from trivet.settings import read

required.triton()

from trivet_cuda import plugin
from trivet_cuda.collectives import parts, plan
from trivet_cuda.collectives.channels import distances
from trivet_cuda.collectives.peer_memory import grid_of, require, wire

MIB = 1 << 20
BF16 = torch.bfloat16


def table(size, *, reach=True, hosts=1, determinism=()):
    """The table of a group whose providers can all be made."""
    members = tuple(Member(r, f"host{r * hosts // size}", 0, f"cuda:{r}") for r in range(size))
    rows = tuple(tuple(reach or a == b for b in range(size)) for a in range(size))
    group = Group("g", 0, members, torch.device("cuda", 0), 5.0, rows)
    facts = group_facts(group, ())
    sources = sources_of(brought({"cuda": parts}, {}), "nccl")
    found = candidates(sources, Policy(read()), facts, determinism)
    return Table("g", found, facts)


def chosen(of, nbytes, dtype=BF16, operation="all_reduce", *, symmetric=False, reduction="sum"):
    return of.find(operation, dtype, reduction, nbytes, symmetric).id


@pytest.mark.parametrize(
    ("size", "nbytes", "provider"),
    [
        (2, 0, "cuda/one_shot"), (2, 4 * MIB, "cuda/one_shot"), (2, 4 * MIB + 1, "cuda/nccl"),
        (3, 256 << 10, "cuda/one_shot"), (4, MIB, "cuda/two_shot"), (4, 3 * MIB, "cuda/nccl"),
        (8, 65536, "cuda/one_shot"), (8, 65538, "cuda/two_shot"), (8, 3 * MIB, "cuda/nccl"),
        (9, 8, "cuda/nccl"),
    ],
)  # fmt: skip
def test_size_and_ranks_decide(size, nbytes, provider):
    assert chosen(table(size), nbytes) == provider


def test_symmetric_memory_is_reduced_where_it_lies_once_it_is_large():
    of = table(2)
    assert chosen(of, MIB, symmetric=True) == "cuda/one_shot"
    assert chosen(of, 32 * MIB, symmetric=True) == "cuda/in_place"
    assert chosen(of, 32 * MIB) == "cuda/nccl"
    assert chosen(of, 256 * MIB, symmetric=True) == "cuda/nccl"


def test_what_the_kernels_do_not_reduce_nccl_does_and_compositions_the_rest():
    of = table(2)
    assert chosen(of, 8, torch.float64) == "cuda/nccl"
    assert chosen(of, 8, reduction="max") == "cuda/nccl"
    assert chosen(of, 8, torch.float8_e4m3fn).startswith("composed/")
    assert chosen(of, 8, torch.int32, reduction="bxor").startswith("composed/")


def test_determinism_that_nccl_does_not_claim_is_composed_behind_the_kernels():
    of = table(2, determinism=("order",))
    assert chosen(of, 4 * MIB) == "cuda/one_shot"
    assert chosen(of, 5 * MIB) == "composed/two_shot"


def test_other_operations_have_their_own_sizes():
    of = table(2)
    assert chosen(of, 4 * MIB, operation="reduce_scatter") == "cuda/two_shot"
    assert chosen(of, 4 * MIB + 4, operation="reduce_scatter") == "cuda/nccl"
    u8 = torch.uint8
    assert chosen(of, 1024, u8, "all_gather", reduction="") == "cuda/packets"
    assert chosen(of, MIB, u8, "all_gather", reduction="") == "cuda/nccl"
    assert chosen(of, 0, u8, "all_to_all_v", reduction="") == "cuda/nccl"
    assert chosen(of, 8 * MIB, operation="all_reduce_add_rms_norm") == "cuda/fused_norm"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"size": 2, "reach": False}, "p2p is False"),
        ({"size": 2, "hosts": 2}, "hosts is 2"),
        ({"size": 1}, "size is 1"),
        ({"size": 16}, "size is 16"),
    ],
)
def test_without_peers_the_kernels_are_refused_with_the_reason(arguments, reason):
    of = table(**arguments)
    rows = [c for c in of.candidates["all_reduce"] if c.id == "cuda/one_shot"]
    assert rows
    assert all(c.refused for c in rows)
    assert any(reason in c.refused for c in rows), rows[0].refused
    assert chosen(of, 8) == "cuda/nccl"


@pytest.mark.parametrize("size", range(2, 9))
def test_every_message_of_a_domain_has_room(size):
    slot = plan.slot(size)
    rows = {"one_shot": plan.ONE_SHOT, "two_shot": {2: 4 * MIB, **plan.TWO_SHOT},
            "scatter": plan.SCATTER, "gather": plan.GATHER}  # fmt: skip
    most = {
        way: next(nbytes for low, high, nbytes in plan.bands(row) if low <= size <= high)
        for way, row in rows.items()
    }
    for kind, odd in itertools.product((torch.float32, BF16), (0, 1)):
        step = kind.itemsize
        words = wire(kind, most["one_shot"] // step - odd)[1]
        part = -(-wire(kind, most["two_shot"] // step - odd)[1] // size)
        part += -part % 4
        share = wire(kind, most["scatter"] // step // size - odd)[1]
        for way, n, room in (("one_shot", words, slot), ("two_shot", part, slot // 2),
                             ("two_shot", share, slot // 2)):  # fmt: skip
            shape = plan.shape(way, n, 90)
            require(room, shape, grid_of(shape, n), n)
    for n in (most["gather"] // 4, most["gather"] // 4 - 1):
        shape = plan.shape("gather", n, 90)
        require(slot // 2, shape, grid_of(shape, n), n)
    with pytest.raises(CommUnsupported, match="channels"):
        require(64, plan.Shape(128, 1, True), 1, 129)


@pytest.mark.parametrize("way", ["one_shot", "two_shot", "gather", "in_place"])
def test_threads_fill_the_channels_before_blocks_grow(way):
    before = 0
    for power in range(24):
        shape = plan.shape(way, 1 << power, 90)
        assert shape.block >= before
        assert shape.block & (shape.block - 1) == 0
        assert 1 <= shape.warps <= 16
        assert shape.block >= 32 * shape.warps
        before = shape.block
    assert not plan.shape(way, 8, 80).overlap
    assert plan.shape(way, 8, 80).options() == {"num_warps": plan.shape(way, 8, 90).warps}


def test_distances_are_in_order_of_the_ranks_after_this_one():
    assert distances([1000, 2000, 4000], 1, 4) == (500, -250, 0, 0, 0, 0, 0)
    assert distances([8, 16], 0, 4) == (2, 0, 0, 0, 0, 0, 0)


def test_the_plugin_brings_them_when_a_group_is_opened():
    assert plugin.trivet_collectives(None) is parts
    assert [part.__name__ for part in parts() if isinstance(part, type)] == [
        "PeerMemoryRanks", "NcclRanks",
    ]  # fmt: skip
