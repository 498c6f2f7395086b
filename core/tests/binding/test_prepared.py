from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from stand_ins import (
    OPS,
    attend_one,
    halve,
    linear_halves,
    linear_turned,
    make_device,
    turn,
)
from trivet.contracts import between, dtype, implements
from trivet.errors import NoImplementation, OrderError, OutOfMemory, UnknownName
from trivet.memory import Ledger

FACTS = {"dtype": torch.float32, "in_features": 8, "out_features": 6, "bias": None}
REFERENCE = OPS["linear_packed"].reference


@pytest.fixture
def weight():
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def plan():
    """Small steps run the halves, others the reference."""
    return make_device(linear_halves).plan({"up": ("linear_packed", FACTS)})


def check(plan, handle, weight, tokens):
    x = torch.randn(tokens, 8)
    step = plan.at(tokens=tokens)
    result = step.up(x, step.use(handle), 6)
    torch.testing.assert_close(result, x @ weight.T)


def test_a_handle_has_one_pack_for_each_provider_of_some_step(plan, weight):
    handle = plan.prepare("up", weight)
    assert set(handle.packs) == {"acme/halves", "reference"}
    assert handle.nbytes == {"acme/halves": weight.nbytes, "reference": weight.nbytes}
    assert handle.packs["reference"][0] is weight
    check(plan, handle, weight, 3)
    check(plan, handle, weight, 30)
    assert len(plan.at(tokens=3).use(handle)) == 2
    assert len(plan.at(tokens=30).use(handle)) == 1
    assert handle.weight() is weight


def test_one_pack_on_every_step(weight):
    dev = make_device(linear_halves, linear_turned)
    facts = FACTS | {"contiguous": True}
    both = dev.plan({"up": ("linear_packed", facts)})
    assert set(both.prepare("up", weight).packs) == {"acme/halves", "acme/turned"}
    one = dev.plan({"up": ("linear_packed", facts)}, packs=1)
    assert one.at(tokens=3).up is one.at(tokens=30).up is linear_turned
    assert set(one.prepare("up", weight).packs) == {"acme/turned"}
    row = one.explain("up")[0]
    assert (row.provider, row.verdict) == ("acme/halves", "no")
    assert row.reason == "packs=1 takes no guarded provider (between(tokens, 1, 8))"


def test_one_pack_where_none_fits_every_step_is_refused():
    dev = make_device(linear_halves, strict=True)
    with pytest.raises(NoImplementation, match="site 'up': packs=1 leaves no provider"):
        dev.plan({"up": ("linear_packed", FACTS)}, packs=1)
    for wrong in (2, -1, "1"):
        with pytest.raises(UnknownName, match="packs="):
            dev.plan({"up": ("linear_packed", FACTS)}, packs=wrong)


def test_a_guarded_prepared_site_is_refused_when_the_plan_is_made():
    with pytest.raises(OrderError) as caught:
        make_device(linear_turned).plan({"up": ("linear_packed", FACTS)})
    assert caught.value.what == (
        "site 'up' takes a prepared weight and is still guarded on contiguous(x)"
    )
    assert "facts of the site" in caught.value.fix


def test_a_step_without_sizes_has_no_pack_yet(plan, weight):
    handle = plan.prepare("up", weight)
    with pytest.raises(OrderError, match="site 'up' is still guarded on between"):
        plan.at().use([handle])


def test_a_strict_step_that_nothing_runs_has_no_pack(weight):
    plan = make_device(linear_halves, strict=True).plan({"up": ("linear_packed", FACTS)})
    handle = plan.prepare("up", weight)
    assert set(handle.packs) == {"acme/halves"}
    check(plan, handle, weight, 3)
    with pytest.raises(NoImplementation, match="nothing may run site 'up' in this step"):
        plan.at(tokens=30).use(handle)


def test_a_handle_of_another_plan_has_no_pack(plan, weight):
    handle = make_device().plan({"up": ("linear_packed", FACTS)}).prepare("up", weight)
    with pytest.raises(OrderError, match="runs acme/halves in this step, which has no pack"):
        plan.at(tokens=3).use(handle)


@pytest.mark.parametrize("site", ["down", "norm", None])
def test_only_sites_on_packs_are_prepared(weight, site):
    plan = make_device().plan({"up": ("linear_packed", FACTS), "norm": ("rms_norm", {})})
    with pytest.raises(OrderError, match="is no site with a prepared weight"):
        plan.prepare(site, weight)


@dataclasses.dataclass(frozen=True)
class Layer:
    up: object
    width: int = 8


Pair = namedtuple("Pair", "one two")  # noqa: PYI024  # the kind that users have


def test_use_maps_handles_in_nested_containers(plan, weight):
    handle, other = plan.prepare("up", weight), plan.prepare("up", weight + 1)
    tree = {
        "list": [handle, 1, None],
        "tuple": (handle, "text"),
        "named": Pair(handle, other),
        "space": SimpleNamespace(up=handle, deep={"x": [other]}),
        "layer": Layer(handle),
        "ordered": OrderedDict(a=other),
        "proxy": MappingProxyType({"a": handle}),
        "tensor": weight,
        "class": Layer,
    }
    used = plan.at(tokens=3).use(tree)
    pack, second = handle.packs["acme/halves"], other.packs["acme/halves"]
    assert used["list"][0] is pack
    assert used["list"][1:] == [1, None]
    assert used["tuple"] == (pack, "text")
    assert isinstance(used["named"], Pair)
    assert used["named"].two is second
    assert used["space"].up is pack
    assert used["space"].deep["x"][0] is second
    assert used["layer"] == Layer(pack)
    assert used["ordered"]["a"] is second
    assert used["proxy"]["a"] is pack
    assert used["tensor"] is weight
    assert used["class"] is Layer
    assert tree["list"][0] is handle, "the tree itself is not changed"


def test_use_is_computed_once_for_each_tree(plan, weight):
    tree = [plan.prepare("up", weight)]
    step = plan.at(tokens=3)
    assert step.use(tree) is step.use(tree)
    assert step.use(tree) is not step.use(list(tree))
    assert plan.at(tokens=30).use(tree) is not step.use(tree)


def test_a_pack_that_can_be_turned_back_lets_the_source_go(weight):
    facts = FACTS | {"contiguous": True}
    plan = make_device(linear_turned).plan({"up": ("linear_packed", facts)})
    handle = plan.prepare("up", weight)
    assert handle.source is None
    assert torch.equal(handle.weight(), weight)
    semantic = plan.semantic()
    x = torch.randn(2, 8)
    torch.testing.assert_close(semantic.up(x, semantic.use(handle), 6), x @ weight.T)


def test_a_pack_that_cannot_be_turned_back_keeps_the_source(weight):
    facts = FACTS | {"tokens": 4}
    handle = make_device(linear_halves).plan({"up": ("linear_packed", facts)}).prepare("up", weight)
    assert set(handle.packs) == {"acme/halves"}
    assert handle.source is weight
    lost = dataclasses.replace(handle, source=None)
    with pytest.raises(OrderError, match="cannot be recovered from acme/halves"):
        lost.weight()


@implements(
    "linear_packed@1", name="sealed", prepare=halve, opaque=True, domain=[dtype("x", "float32")]
)
def linear_sealed(x, packed, out_features, bias=None):
    return linear_halves(x, packed, out_features, bias)


def test_an_opaque_pack_says_so_and_keeps_the_source(weight):
    plan = make_device(linear_sealed).plan({"up": ("linear_packed", FACTS)})
    handle = plan.prepare("up", weight)
    assert handle.implementations["acme/sealed"].claim.opaque
    assert handle.weight() is weight


SEEN = []


def spy(facts, weight, bias):
    SEEN.append((dict(facts), bias))
    return turn(facts, weight, bias)


@implements("linear_packed@1", name="spy", prepare=spy, domain=[between("out_features", 1, 99)])
def linear_spied(x, packed, out_features, bias=None): ...


def test_prepare_is_told_the_facts_of_the_site_and_the_bias(weight):
    bias = torch.zeros(6)
    facts = FACTS | {"bias": "given", "tokens": range(1, 4)}
    make_device(linear_spied).plan({"up": ("linear_packed", facts)}).prepare("up", weight, bias)
    told, given = SEEN.pop()
    assert given is bias
    assert (told["in_features"], told["x.dtype"], told["bias"]) == (8, torch.float32, "present")


def attention_plan():
    facts = {"contiguous": True, "heads": 4, "head_dim": 8, "max_query_len": "queries"}
    return make_device(attend_one).plan({"attn": ("paged_attention", facts)})


def test_a_schedule_is_made_by_the_steps_provider_and_written_again():
    plan = attention_plan()
    step = plan.at(queries=1)
    made = step.schedule("attn", None, None, None, 1, 50)
    assert made[0].tolist() == [1, 4]
    address = made[0].data_ptr()
    again = step.schedule("attn", None, None, None, 7, 50, out=made)
    assert again is made
    assert (made[0].tolist(), made[0].data_ptr()) == ([7, 4], address)
    assert plan.at(queries=5).schedule("attn", None, None, None, 5, 50) == []
    with pytest.raises(OrderError, match="still guarded"):
        plan.at().schedule("attn", None, None, None, 1, 50)


def test_a_bind_never_guards_over_packs():
    dev = make_device(linear_turned, linear_halves)
    rows = {r.provider: r for r in dev.explain("linear_packed", {"dtype": "float32"})}
    assert rows["acme/turned"].verdict == "no"
    assert "plan.prepare" in rows["acme/turned"].reason
    assert (
        dev.ops.linear_packed(torch.ones(2, 8), [torch.ones(4, 8)], 4).tolist() == [[8.0] * 4] * 2
    )
    proved = dev.bind(
        "linear_packed", {"contiguous": True}, prefer={"linear_packed": "acme/turned"}
    )
    assert proved is linear_turned


@dataclasses.replace(linear_halves.__trivet__[0], name="more", domain=())
def linear_more(x, packed, out_features, bias=None):
    return linear_halves(x, packed, out_features, bias)


def test_providers_with_one_prepare_function_share_a_pack(weight):
    plan = make_device(linear_halves, linear_more).plan({"up": ("linear_packed", FACTS)})
    handle = plan.prepare("up", weight)
    assert set(handle.packs) == {"acme/halves", "acme/more"}
    assert handle.packs["acme/halves"] is handle.packs["acme/more"]
    check(plan, handle, weight, 3)
    check(plan, handle, weight, 30)


def test_packs_are_accounted_once_and_given_back(plan, weight):
    ledger = Ledger()
    handle = plan.prepare("up", weight, account=ledger.account)
    assert ledger.by_tag() == {"packs": weight.nbytes, "weights": weight.nbytes}
    again = plan.prepare("up", weight, account=ledger.account)
    assert ledger.by_tag() == {"packs": 2 * weight.nbytes, "weights": weight.nbytes}
    del handle, again
    assert ledger.by_tag() == {"weights": weight.nbytes}


def test_packs_beyond_the_limit_are_one_clear_error(plan, weight):
    with pytest.raises(OutOfMemory, match=r"bytes \(packs\) exceed the limit"):
        plan.prepare("up", weight, account=Ledger(weight.nbytes).account)
