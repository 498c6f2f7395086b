"""The kit judges its mutants: each is killed by the family it names, each legal one accepted."""

from __future__ import annotations

from collections import defaultdict

import pytest

from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.selftest.collective import COMM_VARIANTS
from trivet_conformance.selftest.defects import CLASSES, NOT_YET, NUMBERS
from trivet_conformance.selftest.memory import MEMORY_VARIANTS
from trivet_conformance.selftest.mutants import VARIANTS
from trivet_conformance.selftest.selftest import (
    PLUGIN,
    Outcome,
    figures,
    judge_variant,
    selftest,
    sole_killers,
)
from trivet_conformance.subject.subject import from_functions
from trivet_conformance.suite.levels import ASYNCHRONOUS

MUTANTS = [v for v in VARIANTS if v.killer]
LEGAL = [v for v in VARIANTS if not v.killer]


@pytest.fixture(scope="module")
def outcomes():
    return {o.name: o for o in selftest(quick=True)}


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_a_variant_is_judged_as_it_must(outcomes, name):
    outcome = outcomes[name]
    assert outcome.ok, outcome.reasons or f"{outcome.killer} accepts it"


def test_every_family_kills_mutants_and_legal_variants_are_many():
    """Families for asynchronous devices have theirs where such a device is."""
    assert {v.killer for v in MUTANTS} == set(FAMILIES) - ASYNCHRONOUS
    assert len(LEGAL) >= 20


def test_names_are_unique(outcomes):
    assert len(outcomes) == len(VARIANTS)


def test_mutants_are_of_many_classes_and_each_class_is_said():
    numbers = {v.number for v in MUTANTS} - {0}
    assert all(text and names for text, names in CLASSES.values())
    assert len(NUMBERS) == sum(len(names) for _, names in CLASSES.values())
    assert len(numbers) >= 60
    known = {v.name for v in (*VARIANTS, *MEMORY_VARIANTS, *COMM_VARIANTS)}
    assert set(NUMBERS) <= known, "a class names a mutant that is gone"
    assert all(NOT_YET.values())


def test_a_plain_comparison_sees_few_of_the_mutants(outcomes):
    found = figures(list(outcomes.values()), quick=True)
    assert found["ok"]
    assert found["mutants"] == found["mutants_killed"] >= 60
    assert found["legal"] == found["legal_accepted"] >= 20
    assert 0 < found["share_seen_by_assert_close"] <= 0.3
    assert found["sole_killers"] is None


def test_figures_count_what_was_judged_wrongly():
    rows = [
        Outcome("a", "x", "value", ("value", "meta"), ("value",), number=1, seen="not close"),
        Outcome("b", "x", "value", ("value",), (), number=1),
        Outcome("c", "x", "", ("value",), ()),
        Outcome("d", "x", "", ("value",), ("value",), seen="not close"),
    ]
    found = figures(rows, quick=False)
    assert not found["ok"]
    assert (found["mutants"], found["mutants_killed"], found["classes"]) == (2, 1, 1)
    assert (found["legal"], found["legal_accepted"]) == (2, 1)
    assert found["share_seen_by_assert_close"] == 0.5
    assert found["matrix"]["a"] == {"value": True, "meta": False}
    assert found["sole_killers"]["value"] == ["a"]
    assert found["variants"][0]["seen_by_assert_close"] is True
    assert found["legal_refused_by_assert_close"] == ["d"]


SOLE = {
    "value": "tail_unwritten",
    "meta": "result_transposed_in_memory",
    "alias": "writes_past_the_end",
    "layout": "assumes_a_dense_bias",
    "special": "nan_becomes_zero",
    "model": "columns_of_one_grid_only",
    "dispatch": "allocates_while_it_decides",
    "fusion": "square_of_the_sum_expanded",
    "errors": "stays_broken_after_an_error",
    "staged": "square_pack_transposed",
    "poison": "rows_chosen_by_a_product",
    "repeat": "wrong_after_ten_calls",
    "metamorphic": "small_batches_summed_wide",
    "state": "works_only_after_another",
    "graph": "writes_behind_torch",
}


@pytest.fixture(scope="module")
def benches():
    """What is right for an operator is computed once for all of its mutants."""
    return defaultdict(lambda: Bench(0, quick=True))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ASYNCHRONOUS])
def test_no_family_is_redundant(family, benches):
    """One mutant of each family is accepted by all the others."""
    own = [v for v in MUTANTS if v.killer == family]
    own.sort(key=lambda v: v.name != SOLE.get(family))
    outcomes = []
    for variant in own:
        subject = from_functions(variant.functions, PLUGIN)
        bench = benches[subject.targets[0].op.name]
        outcomes.append(judge_variant(variant, subject, tuple(FAMILIES), bench))
        if sole_killers(outcomes)[family]:
            return
    pytest.fail(f"{[(o.name, o.killed, o.reasons) for o in outcomes]}")
