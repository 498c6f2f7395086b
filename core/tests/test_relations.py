"""Declared relations hold for the reference."""

from __future__ import annotations

import pytest
import torch

from trivet.binding.example_calls import arguments
from trivet.catalogue import operators


@pytest.mark.parametrize(
    "relation", operators()["paged_attention"].cases.relations, ids=lambda r: r.name
)
def test_the_reference_of_attention_has_its_relations(relation):
    op = operators()["paged_attention"]
    rng = torch.Generator().manual_seed(0)
    given = arguments(op, dict(op.cases.sizes[0]), torch.float64, rng)
    names = op.signature.names()
    first = op.reference(*(given[n] for n in names))
    changed = relation.arguments(given)
    second = op.reference(*(changed[n] for n in names))
    torch.testing.assert_close(second, relation.results([first], given)[0])
    assert any(changed[n] is not given[n] for n in names)
