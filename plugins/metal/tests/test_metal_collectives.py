"""Groups of one; larger ones are judged by the kit, which starts processes for them."""

from __future__ import annotations

import pytest
import torch

from trivet.contracts.collectives import Group, Member, offers_of
from trivet.errors import CommError
from trivet_metal.collectives import NAME, MetalTopology, StagedRanks


@pytest.fixture
def alone():
    member = Member(0, "mac", 1, "mps:0")
    device = torch.device("cpu")
    return StagedRanks(Group("world", 0, (member,), device, 5.0, ((True,),), None, "t"), None)


def test_every_operation_says_that_it_is_staged():
    names = {offer.name for offer in offers_of(StagedRanks)}
    assert names == {NAME} == {"gloo_staged"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_group_of_one_copies(alone, dtype):
    inp = torch.arange(6).to(dtype)
    for operation in (lambda out: alone.all_reduce(out, inp, "sum"),
                      lambda out: alone.all_gather(out, inp),
                      lambda out: alone.all_to_all(out, inp)):  # fmt: skip
        out = torch.zeros_like(inp)
        operation(out)
        assert torch.equal(out, inp)
    kept = inp.clone()
    alone.broadcast(kept, 0)
    assert torch.equal(kept, inp)


def test_a_reduction_that_gloo_has_not_is_refused(alone):
    with pytest.raises(CommError, match="'bxor'"):
        alone.all_reduce(torch.ones(1), torch.ones(1), "bxor")


def test_a_mac_has_one_gpu_and_its_addresses_are_handles():
    topology = MetalTopology()
    assert topology.links() == ()
    assert topology.reaches(0, 0)
    assert not topology.traits().addressed
