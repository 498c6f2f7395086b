"""The families on collectives: mutants, legal variants, deadlines, their place in a run."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from trivet_conformance import collective
from trivet_conformance.cli.program import main
from trivet_conformance.collective import COMM, CommLeg
from trivet_conformance.collective.judged import Wrong
from trivet_conformance.collective.ranks import Ranks
from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import MEMORY
from trivet_conformance.report.verdict import in_order
from trivet_conformance.result import BAD, Status
from trivet_conformance.running.run import comm_places, run, steps
from trivet_conformance.selftest.collective import COMM_VARIANTS, judge_comm
from trivet_conformance.selftest.collective.legal import one_operation_of_one_dtype
from trivet_conformance.selftest.legs import leg_figures
from trivet_conformance.subject.leg import CORE
from trivet_conformance.subject.subject import references

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="made of Linux's calls")
CPU = torch.device("cpu")

NOW = (
    "sums_in_half", "positions_are_ranks_of_the_world", "edge_claimed_too_far", "order_by_place",
    "exchanges_are_of_equal_sizes", "segments_stay", "of_other_ranks",
)  # fmt: skip
"""Variants that are judged on every change, at least one for each family."""


@linux
@pytest.mark.parametrize(
    "name",
    [pytest.param(v.name, marks=() if v.name in NOW else pytest.mark.soak) for v in COMM_VARIANTS],
)
def test_collectives_are_judged_as_they_must(name):
    (outcome,) = judge_comm(quick=True, names=[name])
    assert outcome.ok, outcome.reasons or f"{outcome.killer} accepts it"
    assert outcome.number or not outcome.killer


def test_every_family_kills_and_names_are_its_own():
    assert {v.killer for v in COMM_VARIANTS} - {""} == set(COMM)
    assert {v.killer for v in COMM_VARIANTS if v.name in NOW} == set(COMM)
    assert len({v.name for v in COMM_VARIANTS}) == len(COMM_VARIANTS)
    assert not set(COMM) & {*FAMILIES, *MEMORY}


def test_figures_count_what_was_judged_wrongly():
    figures = leg_figures("comm", [])
    assert figures["comm_mutants"] == figures["comm_legal_accepted"] == 0


@pytest.mark.parametrize("family", COMM)
def test_core_over_gloo_is_right_and_its_own_provider(family):
    leg, bench, seen = CommLeg("acme", CPU), Bench(0, quick=True), set()
    every = list(collective.cases(family, leg, bench))
    for case in every[:: 1 + (len(every) > 12)]:  # of many every second one
        finding = case.run()
        assert finding.status not in BAD, (family, case.name, finding.reason)
        seen.add(finding.status)
    assert Status.PASS in seen
    assert leg.owner == CORE


@pytest.mark.soak
@pytest.mark.parametrize("family", COMM)
def test_core_over_gloo_is_right_in_full(family):
    for case in collective.cases(family, CommLeg("acme", CPU), Bench(0)):
        finding = case.run()
        assert finding.status not in BAD, (family, case.name, finding.reason)


def test_one_operation_is_judged_alone():
    leg = CommLeg("acme", CPU, one_operation_of_one_dtype)
    assert leg.owner == "acme"
    assert leg.offers() == {"all_reduce": ("acme/all_reduce",)}
    names = [c.name for c in collective.cases("comm.value", leg, Bench(0, quick=True))]
    assert {name.partition(":")[0] for name in names} == {"all_reduce"}


def hangs(here):
    time.sleep(60 * (here.rank == 1))


def ends(here):
    if here.rank == 1:
        os._exit(7)


def agrees(here):
    return here.rank


def test_ranks_that_hang_or_end_are_told_and_replaced():
    ranks = Ranks(CommLeg(CORE, CPU), 1.0, 1.0)
    try:
        with pytest.raises(Wrong, match="rank 1 does not answer within 1 s"):
            ranks.ask(2, body("hangs"))
        ranks.deadline = 20.0
        with pytest.raises(Wrong, match="rank 1 ends with 7"):
            ranks.ask(2, body("ends"))
        assert ranks.ask(2, body("agrees")) == [0, 1]
        assert ranks.ask(2, body("ends"), dies=[1]) == [None, None]
    finally:
        ranks.close()


def body(name):
    """A function of this file, by a name under which ranks can import it."""
    found = globals()[name]
    here = str(Path(__file__).parent)
    sys.path[:0] = [here] * (here not in sys.path)
    found.__module__ = "test_collective"
    return found


def test_a_run_has_the_families_and_can_be_narrowed_to_one_case():
    subject = references()
    assert [p.family for p in comm_places(subject, ())] == list(COMM)
    assert {p.provider for p in comm_places(subject, ())} == {CORE}
    assert comm_places(subject.only(["rms_norm"]), ()) == []
    assert steps(subject, ["comm.agreement"]) == 1
    name = "comm.agreement/collectives/core/made:2ranks"
    (row,) = run(subject, quick=True, case=name)
    assert (row.id, row.status) == (name, Status.PASS)


def test_what_core_composes_shows_nothing_of_a_plugin():
    rows = [{"status": "pass", "operator": "collectives", "family": "comm.value",
             "provider": CORE}]  # fmt: skip
    assert not in_order({"families": []}, rows)
    assert in_order({"families": ["comm.value"]}, rows)


def test_the_command_runs_and_lists_them(tmp_path):
    words = ["run", "--plugin", "reference", "--quick", "--dir", str(tmp_path)]
    done = CliRunner().invoke(main, [*words, "--family", "comm.agreement"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert "comm.agreement" in {r.get("family") for r in rows}
    listed = CliRunner().invoke(main, ["list", "--plugin", "reference", "--json"])
    found = json.loads(listed.output)
    assert found["collectives"] == {}
    assert found["levels"]["comm.errors"] == "L2"
    assert "comm.value" in found["suite"]["families"]
