"""The families on memory, repetition and relations: sole killers, and what they derive."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from trivet.catalogue import operators
from trivet_conformance.families import poison
from trivet_conformance.judging.truth import Bench
from trivet_conformance.selftest.mutants import VARIANTS
from trivet_conformance.selftest.selftest import PLUGIN, judge_variant
from trivet_conformance.subject.subject import from_functions

OWN = ("poison", "repeat", "metamorphic")


@pytest.fixture(scope="module")
def benches():
    """What is right for an operator is computed once for all of its mutants."""
    return defaultdict(lambda: Bench(0, quick=True))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.killer in OWN], ids=lambda v: v.name)
def test_only_the_named_family_kills_it(variant, benches):
    subject = from_functions(variant.functions, PLUGIN)
    families = ("value", "alias", *OWN)
    bench = benches[subject.targets[0].op.name]
    outcome = judge_variant(variant, subject, families, bench)
    assert outcome.killed == (variant.killer,), outcome.reasons


def test_unread_rows_are_those_that_no_id_names():
    op = operators()["embedding"]
    given = {"ids": torch.tensor([1, 3]), "weight": torch.randn(6, 4)}
    found = poison.unread(op, given)
    assert found["weight"].tolist() == [True, False, True, False, True, True]


def test_a_reference_that_reads_everything_has_no_unread_rows():
    op = operators()["silu_and_mul"]
    assert poison.unread(op, {"x": torch.randn(5, 8)}) == {}
