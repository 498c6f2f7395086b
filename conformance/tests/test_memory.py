"""The families on memory: mutants, legal variants, absence, and their place in a run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import pytest
import torch
from click.testing import CliRunner

from trivet.contracts.memory import Tier, Traits
from trivet_conformance import memory
from trivet_conformance.cli.program import main
from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import CORE, MEMORY, Leg, ownership
from trivet_conformance.report.verdict import in_order, why_not
from trivet_conformance.result import BAD, Status
from trivet_conformance.running.run import Watch, every_check, memory_places, run, steps
from trivet_conformance.selftest.legs import leg_figures
from trivet_conformance.selftest.memory import MEMORY_VARIANTS, judge_memory, variant_leg
from trivet_conformance.selftest.memory.legal import (
    counts_alone,
    everything_over_one_mapping,
    migrator_alone,
)
from trivet_conformance.subject.leg import leg_of
from trivet_conformance.subject.subject import references

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="made of Linux's calls")
CPU = torch.device("cpu")


def found(leg, *families):
    """Case -> finding, over families."""
    bench = Bench(0, quick=True)
    return {
        (name, case.name): case.run()
        for name in families or MEMORY
        for case in memory.cases(name, leg, bench)
    }


ELSEWHERE = ("dies_at_the_exit", "exports_a_copy")
"""Variants that start processes, which takes long."""


@linux
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(v.name, marks=pytest.mark.soak if v.name in ELSEWHERE else ())
        for v in MEMORY_VARIANTS
    ],
)
def test_a_memory_is_judged_as_it_must(name):
    (outcome,) = judge_memory(quick=True, names=[name])
    assert outcome.ok, outcome.reasons or f"{outcome.killer} accepts it"
    assert outcome.number or not outcome.killer


def test_every_family_but_that_of_streams_kills():
    assert {v.killer for v in MEMORY_VARIANTS} - {""} == set(MEMORY) - {"memory.stream"}
    assert len({v.name for v in MEMORY_VARIANTS}) == len(MEMORY_VARIANTS)
    assert not set(MEMORY) & set(FAMILIES)


def test_figures_count_what_was_judged_wrongly():
    outcomes = list(judge_memory(quick=True, names=["zero_for_unknown", "counts_alone"]))
    figures = leg_figures("memory", outcomes)
    assert figures["memory_mutants"] == figures["memory_mutants_killed"] == len(outcomes) // 2
    assert figures["memory_legal"] == figures["memory_legal_accepted"] == len(outcomes) // 2


@pytest.mark.parametrize("kind", ["class", "device", "property"])
def test_what_cannot_be_asked_is_told_once_in_words(kind):
    class Odd:
        def traits(self):
            return Traits("cpu", Tier.HOST)

        def allocate(self, nbytes, *, tag):
            return torch.empty(nbytes, dtype=torch.uint8)

        def deallocate(self, buffer):
            pass

    if kind == "property":
        Odd.traits = property(Odd.traits)
    rows = found(Leg("acme", CPU, Odd if kind == "class" else Odd()), "memory.allocate")
    wrong = {name: row.reason for (_, name), row in rows.items() if row.status in BAD}
    words = {"class": "make one of it: ", "device": "no torch.device", "property": "no traits()"}
    assert words[kind] in wrong["traits"]
    assert set(rows) == {("memory.allocate", "abilities"), ("memory.allocate", "traits")}
    assert {row.status for row in rows.values()} <= {Status.FAIL, Status.PASS}


def test_the_allocator_of_the_page_for_vendors_is_right():
    page = Path(__file__).resolve().parents[2] / "docs/how-to/bring-memory.md"
    text = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    space = {"__name__": "page"}
    exec(compile(text, "page", "exec"), space)  # noqa: S102
    rows = found(Leg("acme", CPU, space["trivet_memory"](None)), "memory.allocate")
    assert not [row.reason for row in rows.values() if row.status in BAD]
    assert rows["memory.allocate", "model"].status is Status.PASS


def test_the_name_of_all_families_on_memory_stands_for_each(monkeypatch):
    asked = []

    def session(options):
        asked.append(set(options.families))
        raise ValueError("not run")

    monkeypatch.setattr(sys.modules["trivet_conformance.cli.run"], "_session", session)
    for names in (["memory"], ["memory", "value", "memory.info"], ["memory.info"]):
        given = [word for name in names for word in ("--family", name)]
        CliRunner().invoke(main, ["run", "--plugin", "reference", "--quick", *given])
    assert asked == [set(MEMORY), {*MEMORY, "value"}, {"memory.info"}]


def test_without_a_hook_core_is_judged_and_the_rest_is_absent():
    leg = Leg("acme", CPU)
    rows = found(leg)
    assert not [row for row in rows.values() if row.status in BAD]
    assert rows["memory.allocate", "sizes"].status is Status.PASS
    assert "acme brings nothing" in rows["memory.allocate", "abilities"].notes[0]
    assert memory.provider("memory.allocate", leg) == CORE
    for family in ("memory.reclaim", "memory.migrate", "memory.export"):
        own = [row for (name, _), row in rows.items() if name == family]
        assert {row.status for row in own} == {Status.NOT_SUPPORTED}
        assert all("acme brings no" in row.reason for row in own)
    assert rows["memory.stream", "reuse"].status is Status.NOT_RUN


def test_one_ability_alone_is_judged_alone():
    leg = Leg("acme", CPU, migrator_alone())
    rows = found(leg, "memory.migrate")
    assert rows["memory.migrate", "host-host:copies"].status is Status.PASS
    assert rows["memory.migrate", "unknown_route"].status is Status.NOT_RUN
    assert memory.provider("memory.migrate", leg) == "acme"
    assert memory.provider("memory.allocate", leg) == CORE
    assert memory.provider("memory.info", Leg("acme", CPU, counts_alone())) == "acme"


class Raising:
    """Raises where it is asked for anything."""

    def __getattr__(self, name):
        raise ZeroDivisionError(name)


class Stateful:
    """Never the same traits."""

    def traits(self):
        return Traits(CPU, Tier.HOST, 48)

    def allocate(self, nbytes, *, tag):
        raise ValueError(tag)

    def deallocate(self, buffer):
        del buffer


def test_what_raises_is_wrong_and_ends_nothing():
    rows = found(Leg("acme", CPU, Raising()), "memory.allocate")
    assert rows["memory.allocate", "abilities"].status is Status.FAIL
    rows = found(Leg("acme", CPU, Stateful()), "memory.allocate")
    assert "no power of two" in rows["memory.allocate", "traits"].reason
    assert "raises ValueError: conformance" in rows["memory.allocate", "sizes"].reason


@linux
def test_a_failing_sequence_is_told_and_repeats():
    (variant,) = [v for v in MEMORY_VARIANTS if v.name == "same_place_twice"]
    told = []
    for _ in range(2):
        leg, bench = variant_leg(variant, elsewhere=False), Bench(3)
        (case,) = [c for c in memory.cases("memory.allocate", leg, bench) if c.name == "model"]
        finding = case.run()
        assert finding.status is Status.FAIL
        problem, _, steps_of_it = finding.reason.partition("; after ")
        assert "live" in problem
        assert "allocate(" in steps_of_it
        told.append(steps_of_it)
    assert told[0] == told[1]


def test_a_run_has_the_families_and_can_be_narrowed_to_one_case():
    subject = references()
    assert leg_of(subject.memory.recipe).plugin == "reference"
    assert [p.family for p in memory_places(subject, ())] == list(MEMORY)
    assert memory_places(subject.only(["rms_norm"]), ()) == []
    assert steps(subject, ["memory.info"]) == 1
    name = "memory.info/memory/core/stats"
    (row,) = run(subject, quick=True, case=name)
    assert (row.id, row.status, row.dtype) == (name, Status.PASS, "")
    assert name in row.repro

    class Closed(Watch):
        def group(self, place):
            return place.family != "memory.info"

    families = ["memory.info", "memory.migrate"]
    bench = Bench(0, quick=True)
    places = [p.family for p, _ in every_check(subject, families, bench, watch=Closed())]
    assert places == ["memory.migrate"]


def row(**given):
    return {"status": "pass", "operator": "memory", "provider": CORE, **given}


@pytest.mark.parametrize(
    ("families", "provider", "good"),
    [((), CORE, False), ((), "acme", True), (("memory.info",), CORE, True),
     (("value", "memory.info"), CORE, False)],
)  # fmt: skip
def test_what_core_composes_shows_nothing_of_a_plugin(families, provider, good):
    rows = [row(family="memory.info", provider=provider)]
    assert in_order({"families": list(families)}, rows) is good
    assert bool(why_not({"families": list(families)}, rows)) is not good


def test_the_command_runs_and_lists_them(tmp_path):
    words = ["run", "--plugin", "reference", "--quick", "--in-process", "--dir", str(tmp_path)]
    words += ["--family", "memory.info", "--family", "memory.reclaim"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "memory.info" in done.output
    rows = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert {r["family"] for r in rows[1:]} == {"memory.info", "memory.reclaim"}
    page = CliRunner().invoke(main, ["html", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    assert "memory.reclaim" in (tmp_path / "page.html").read_text()
    listed = CliRunner().invoke(main, ["list", "--plugin", "reference", "--json"])
    rows = json.loads(listed.output)
    assert rows["memory"]["brings"] == []
    assert rows["levels"]["memory.stream"] == "L2"
    assert "memory.allocate" in rows["suite"]["families"]


class Ring:
    """What only the collector ends."""

    def __init__(self):
        self.itself = self


def test_what_earlier_checks_left_to_the_collector_is_not_the_next_ones():
    left = WeakSet()

    class CountsTensorsToo(everything_over_one_mapping):
        def stats(self):
            own = super().stats()
            return replace(own, allocated_bytes=own.allocated_bytes + 4096 * len(left))

    leg = Leg("acme", CPU, CountsTensorsToo())
    left.add(Ring())
    ownership.finaliser(leg, Bench(0, quick=True))
    assert not left
