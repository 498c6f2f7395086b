"""The kit judges its mutants: each is killed by the family it names, each legal one accepted."""

from __future__ import annotations

import pytest

from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.selftest.mutants import VARIANTS
from trivet_conformance.selftest.selftest import PLUGIN, judge_variant, selftest, sole_killers
from trivet_conformance.subject.subject import from_functions


@pytest.fixture(scope="module")
def outcomes():
    return {o.name: o for o in selftest(quick=True)}


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_a_variant_is_judged_as_it_must(outcomes, name):
    outcome = outcomes[name]
    assert outcome.ok, outcome.reasons or f"{outcome.killer} accepts it"


def test_every_family_kills_mutants_and_legal_variants_are_many():
    killers = {v.killer for v in VARIANTS}
    assert killers == {"", *FAMILIES}
    assert sum(not v.killer for v in VARIANTS) >= 10


def test_names_are_unique(outcomes):
    assert len(outcomes) == len(VARIANTS)


SOLE = {
    "value": "tail_unwritten",
    "meta": "result_transposed_in_memory",
    "alias": "writes_past_the_end",
    "layout": "assumes_a_dense_bias",
    "special": "nan_becomes_zero",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_is_redundant(family):
    """One mutant of each family is accepted by all the others."""
    (variant,) = [v for v in VARIANTS if v.name == SOLE[family]]
    subject = from_functions(variant.functions, PLUGIN)
    outcome = judge_variant(variant, subject, tuple(FAMILIES), Bench(0, quick=True))
    assert sole_killers([outcome])[family] == [variant.name], outcome.reasons
