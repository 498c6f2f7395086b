"""Functions that a vendor makes for one site, and implementations that must be asked for."""

from __future__ import annotations

import pytest
import torch

from stand_ins import make_device
from trivet.contracts import dtype, implements

FACTS = {"dtype": "float32", "contiguous": True, "inter": 4}
SEEN = []
MADE = {}
CALLS = []


def made_for(facts):
    """One function for each row length; none where it is not known."""
    SEEN.append(dict(facts))
    if "inter" not in facts:
        return None

    def at_site(x):
        CALLS.append(x)
        return plain(x)

    return MADE.setdefault(facts["inter"], at_site)


@implements("silu_and_mul@1", name="sites", domain=[dtype("x", "float32")], resolve=made_for)
def plain(x):
    return torch.nn.functional.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]


@implements("silu_and_mul@1", name="asked", on_request=True)
def asked(x):
    return plain(x)


@pytest.fixture
def dev():
    SEEN.clear()
    return make_device(plain, asked)


def test_a_site_holds_what_the_vendor_makes_of_its_facts(dev):
    held = dev.bind("silu_and_mul", FACTS)
    assert held is MADE[4]
    assert dev.bind("silu_and_mul", FACTS) is held
    assert SEEN[0]["inter"] == 4
    assert torch.equal(held(torch.ones(2, 8)), plain(torch.ones(2, 8)))


def test_without_the_facts_it_needs_the_vendor_makes_none(dev):
    assert dev.bind("silu_and_mul", {"dtype": "float32"}) is plain


def test_a_plan_holds_it_too_observed_or_not(dev):
    sites = {"glu": ("silu_and_mul", FACTS)}
    assert dev.plan(sites).glu is MADE[4]
    plan = dev.plan(sites, observe=True)
    CALLS.clear()
    plan.glu(torch.ones(2, 8))
    assert plan.counts() == {("glu", "acme/sites"): 1}
    assert len(CALLS) == 1


def test_behind_a_guard_it_runs_as_well_and_other_forms_are_derived(dev):
    guarded = dev.bind("silu_and_mul", {"inter": 4})
    assert torch.equal(guarded(torch.ones(2, 8)), plain(torch.ones(2, 8)))
    out = torch.empty(2, 4)
    dev.bind("silu_and_mul_out", FACTS)(torch.ones(2, 8), out=out)
    assert torch.equal(out, plain(torch.ones(2, 8)))


def test_one_on_request_is_no_candidate_until_an_order_list_names_it(dev):
    rows = {r.provider: r for r in dev.explain("silu_and_mul", FACTS)}
    assert (rows["acme/asked"].verdict, rows["acme/asked"].reason) == (
        "no",
        "only where an order list names it",
    )
    wish = {"silu_and_mul": "acme/asked"}
    assert dev.bind("silu_and_mul", FACTS, prefer=wish) is asked
    assert dev.bind("silu_and_mul", FACTS) is MADE[4]
