"""The installed CPU package, as its maker would run the kit."""

from __future__ import annotations

from trivet_conformance import Status, installed, run
from trivet_conformance.collective import OPERATOR as COLLECTIVES
from trivet_conformance.families import FAMILIES
from trivet_conformance.memory import OPERATOR
from trivet_conformance.result import BAD


def test_the_cpu_package_conforms():
    bad, seen = [], set()
    for result in run(installed("cpu"), quick=True):
        if result.status in BAD:
            bad.append(f"{result.status} {result.id}: {result.finding.reason}\n  {result.repro}")
        if result.status is Status.PASS:
            seen.add((result.op, result.family))
    assert not bad, "\n".join(bad[:20])
    assert (OPERATOR, "memory.allocate") in seen
    assert (COLLECTIVES, "comm.value") in seen
    operators = {op for op, _ in seen} - {OPERATOR, COLLECTIVES}
    assert operators
    everywhere = {"value", "meta", "alias", "layout", "special"} & set(FAMILIES)
    assert seen >= {(op, family) for op in operators for family in everywhere}
