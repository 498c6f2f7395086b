"""The installed CPU package, as its maker would run the kit; ``.ci/kit cpu`` runs every check."""

from __future__ import annotations

from collections import Counter

from trivet_conformance import Status, installed, run
from trivet_conformance.collective import OPERATOR as COLLECTIVES
from trivet_conformance.families import FAMILIES
from trivet_conformance.memory import OPERATOR
from trivet_conformance.result import BAD
from trivet_conformance.running.run import Watch

SHARE = 3


class Third(Watch):
    """Leaves two of three checks out of every family of an implementation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def case(self, place):
        self.seen[place.group] += 1
        return self.seen[place.group] % SHARE == 1


def test_a_third_of_the_checks_pass_on_the_cpu_package():
    bad, seen = [], set()
    for result in run(installed("cpu"), quick=True, watch=Third()):
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
