"""Hostile plugins: each is told in its family, and harms nobody else's results."""

from __future__ import annotations

import pytest

from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD
from trivet_conformance.running.run import run
from trivet_conformance.selftest.faults import FAULTS, with_fault
from trivet_conformance.selftest.hostile import HOSTILE, judge_hostile
from trivet_conformance.subject.subject import references

EVERY_RUN = {
    "crashes", "breaks_the_device", "ends", "hangs", "prints", "patches", "detects_modules",
    "detects_environment", "raises_at_import", "writes_junk",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(row.name, marks=[] if row.name in EVERY_RUN else pytest.mark.soak)
        for row in HOSTILE
    ],
)
def test_a_hostile_plugin_is_told_and_harms_nobody_else(name):
    (outcome,) = judge_hostile([name])
    assert outcome.ok, outcome.reasons


OPS = ("silu_and_mul", "embedding", "sample_token")


@pytest.fixture(scope="module")
def bench():
    return Bench(0, quick=True)  # what is right is computed once


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_the_third_call_of_any_implementation_is_told(fault, bench):
    subject = with_fault(references().only(OPS), FAULTS[fault], at=3)
    told: dict[str, list[str]] = {target.op.name: [] for target in subject.targets}
    for result in run(subject, families=("value",), bench=bench):
        if result.status in BAD:
            told[result.op].append(result.finding.reason)
    assert sorted(told) == sorted(OPS)
    assert all(told.values()), told
    assert all(len(reasons) == 1 for reasons in told.values()), told


def test_without_a_fault_nothing_is_told(bench):
    subject = with_fault(references().only(OPS), FAULTS["raises"], at=10**9)
    found = run(subject, families=("value",), bench=bench)
    assert [r.finding.reason for r in found if r.status in BAD] == []
