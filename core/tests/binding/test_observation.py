from __future__ import annotations

import threading

import torch

from stand_ins import OPS, make_device, norm_big, norm_small, sample_top

SITES = {
    "norm": ("rms_norm", {}),
    "last": ("rms_norm", {"tokens": "rows"}),
    "head": ("sample_token", {}),
}


def test_counts_are_exact_by_site_and_provider():
    dev = make_device(norm_small, norm_big, sample_top)
    plan = dev.plan(SITES, observe=True)
    weight = torch.ones(8)
    for tokens, times in ((3, 2), (30, 3), (70, 5)):
        x = torch.randn(tokens, 8)
        for _ in range(times):
            plan.norm(x, weight)
            plan.at(tokens=tokens).norm(x, weight=weight)
    plan.at(rows=1).last(torch.randn(1, 8), weight)
    plan.head(torch.randn(2, 9))
    assert plan.counts() == {
        ("norm", "acme/small"): 4,
        ("norm", "reference"): 6,
        ("norm", "acme/big"): 10,
        ("last", "acme/small"): 1,
        ("head", "acme/top"): 1,
    }
    counted = plan.counts()
    counted.clear()
    assert plan.counts(), "a copy was cleared"


def test_an_unobserved_plan_holds_the_raw_function():
    dev = make_device(sample_top)
    watched = dev.plan(SITES, observe=True)
    assert dev.plan(SITES).head is sample_top
    assert watched.head is not sample_top
    assert watched.head.__name__ == "sample_top"
    assert watched.digest == dev.plan(SITES).digest


def test_trace_observes_what_is_made_under_it(monkeypatch):
    dev = make_device(sample_top)
    before = dev.plan(SITES)
    monkeypatch.setenv("TRIVET_TRACE", "1")
    plan, bound = dev.plan(SITES), dev.bind("sample_token", {"vocab": 5})
    monkeypatch.delenv("TRIVET_TRACE")
    before.head(torch.randn(1, 5))
    plan.head(torch.randn(1, 5))
    bound(torch.randn(1, 5))
    bound(logits=torch.randn(1, 5))
    assert plan.counts() == {("head", "acme/top"): 1}
    assert dev.counts() == {("sample_token", "acme/top"): 2}
    dev.bind("sample_token", {"vocab": 5})(torch.randn(1, 5))
    assert dev.counts() == {("sample_token", "acme/top"): 2}
    dev.bind("sample_token", {"vocab": 5}, observe=True)(torch.randn(1, 5))
    assert dev.counts() == {("sample_token", "acme/top"): 3}


def test_two_observed_plans_count_for_themselves():
    dev = make_device(sample_top)
    one, two = (dev.plan(SITES, observe=True) for _ in range(2))
    one.head(torch.randn(1, 5))
    assert one.counts() == {("head", "acme/top"): 1}
    assert two.counts() == {}


def test_counts_are_exact_under_threads():
    plan = make_device(norm_small).plan(SITES, observe=True)
    x, weight = torch.randn(2, 8), torch.ones(8)

    def work():
        for _ in range(250):
            plan.norm(x, weight)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plan.counts() == {("norm", "acme/small"): 2000}


def test_results_are_those_of_the_function():
    plan = make_device(norm_small).plan(SITES, observe=True)
    x, weight = torch.randn(2, 8), torch.ones(8)
    assert torch.equal(plan.norm(x, weight), OPS["rms_norm"].reference(x, weight))
