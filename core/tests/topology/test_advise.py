from __future__ import annotations

from dataclasses import replace

import pytest

from imagined_machines import mock, parts, two_hosts
from trivet.errors import ConfigError
from trivet.topology import Access, Plan, advise, merge

PLANS = [
    Plan(), Plan(tp=8), Plan(tp=2, pp=4), Plan(tp=4, dp=2), Plan(tp=2, pp=2, dp=2),
    Plan(tp=1, dp=8, ep=8), Plan(tp=2, dp=4, ep=4),
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_every_rank_has_a_device_of_its_own_and_a_place_in_every_group(plan):
    found = advise(mock(8), plan)
    assert len(set(found.devices)) == plan.size
    for kind, groups in found.groups.items():
        assert {len(group) for group in groups} == {getattr(plan, kind)}
        assert sorted(rank for group in groups for rank in group) == list(range(plan.size))
    assert found == advise(mock(8), plan)


def test_groups_that_talk_most_get_the_fast_wire():
    found = advise(mock(8), Plan(tp=4, dp=2))
    for group in found.groups["tp"]:
        assert len({int(found.devices[r][-1]) % 2 for r in group}) == 1
    assert "slowest pair acme:0 and acme:2 on one host: wire, 400 GB/s stated" in found.reasons[1]
    assert found.warnings == ()


def test_no_group_spans_hosts_that_need_not_though_the_network_is_faster():
    found = advise(two_hosts(), Plan(tp=8, pp=2))
    for group in found.groups["tp"]:
        assert len({found.devices[r].partition("/")[0] for r in group}) == 1
    assert found.warnings == ()
    found = advise(two_hosts(), Plan(tp=16))
    assert found.warnings[0] == "tp: a group spans hosts"


def test_expert_groups_that_span_copies_stay_on_a_host():
    found = advise(two_hosts(), Plan(tp=2, dp=4, pp=2, ep=8))
    assert found.groups["ep"] == (tuple(range(8)), tuple(range(8, 16)))
    assert {found.devices[r].partition("/")[0] for r in range(8)} == {"one"}


def test_a_pair_without_direct_access_is_passed_over():
    verdict = mock(4)
    access = tuple(
        replace(a, probed=False) if {a.reader, a.owner} == {"acme:0", "acme:2"} else a
        for a in verdict.access
    )
    found = advise(replace(verdict, access=access), Plan(tp=2))
    assert found.devices == ("acme:1", "acme:3")
    links = tuple(one for one in verdict.links if one.kind == "wire")
    forced = advise(replace(mock(2), access=(Access("acme:0", "acme:1", claimed=False),)), Plan(2))
    assert forced.warnings == ("tp: a group has a pair without direct access: acme:0 and acme:1",)
    assert len(links) == 2


def test_the_advice_does_not_depend_on_how_links_are_listed():
    verdict = two_hosts()
    links = list(verdict.links)
    shuffled = replace(verdict, links=tuple(reversed(links)))
    for plan in PLANS:
        assert advise(shuffled, plan) == advise(verdict, plan)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(tp=3, pp=3), "9 ranks, and there are 8 devices of kind acme"),
        (Plan(tp=0), "tp is 0"),
        (Plan(tp=2, ep=3), "ep 3 does not divide"),
    ],
)
def test_what_cannot_be_placed_says_so(plan, why):
    with pytest.raises(ConfigError, match=why):
        advise(mock(8), plan)


def test_ranks_may_be_placed_on_numa_nodes():
    verdict = merge(parts(1))
    assert advise(verdict, Plan(tp=2), kind="numa").devices == ("numa:0", "numa:1")
    with pytest.raises(ConfigError, match="1 devices of kind host"):
        advise(verdict, Plan(tp=2), kind="host")


def test_two_devices_may_be_chosen_of_more_and_the_rest_is_named():
    found = advise(mock(8), Plan(tp=2))
    assert found.devices == ("acme:0", "acme:2")
    assert "6 device(s) stay without a rank" in found.reasons
